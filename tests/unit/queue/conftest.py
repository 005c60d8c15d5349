"""A store in a file, on a clock that moves only when told to; `reopen` closes it and opens it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Limits, Millstream
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue

Reopen = Callable[..., Millstream]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def reopen(tmp_path: Path, clock: SimulatedClock) -> Iterator[Reopen]:
    opened: list[Millstream] = []

    def again(limits: Limits | None = None) -> Millstream:
        for before in opened:
            before.close()
        path = tmp_path / "store.db"
        opened.append(millstream.open(path, clock=clock, limits=limits, durability="relaxed"))
        return opened[-1]

    yield again
    for ms in opened:
        ms.close()


@pytest.fixture
def ms(reopen: Reopen) -> Millstream:
    return reopen()


def counts(queue: Queue) -> dict[str, int]:
    """The counts that are not 0."""
    info = queue.info()
    assert info is not None
    names = ("available", "unrouted", "delayed", "in_flight", "done", "failed")
    return {name: getattr(info, name) for name in names if getattr(info, name)}


def values(messages: list[Any]) -> list[bytes]:
    return [message.value for message in messages]


def settle(queue: Queue) -> None:
    """Take back ended leases."""
    assert queue.claim(0) == []


def fold_all(ms: Millstream) -> None:
    """Fold every commit so far: the newest one always stays."""
    ms.log("something else").append(b"")
    ms.fold()


def upkeep(ms: Millstream) -> None:
    """Do what is done in the background, now."""
    store = ms._session.store  # type: ignore[attr-defined]
    while sum(task(store) for task in store._upkeep):
        pass
