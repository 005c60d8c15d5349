"""A store in a file, on a clock that moves only when told to; `reopen` closes it and opens it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream
from millstream import Limits, Millstream
from millstream.testing import SimulatedClock

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
        opened.append(millstream.open(tmp_path / "store.db", clock=clock, limits=limits))
        return opened[-1]

    yield again
    for ms in opened:
        ms.close()


@pytest.fixture
def ms(reopen: Reopen) -> Millstream:
    return reopen()
