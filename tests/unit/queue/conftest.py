"""Commits of these tests need not survive the machine; and what they ask of queues."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream
from millstream.engine.protocol import Durability
from millstream.testing import Probe
from millstream.threads.queue import Queue
from tests.unit.conftest import Reopen as Reopen
from tests.unit.damaging import fold_all as fold_all


@pytest.fixture
def durability() -> Durability:
    return "relaxed"


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


def upkeep(ms: Millstream) -> None:
    """Do what is done in the background, now."""
    Probe(ms).upkeep()
