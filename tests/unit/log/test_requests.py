"""Readers that follow a log send few requests: over a server, each of them is a round trip."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import pytest

from millstream import Log, Millstream
from millstream.command import Command, Session
from millstream.log.commands import Acknowledge, GetExtent, ReadBlocks, WaitForOffset

T = TypeVar("T")


class CountingSession:
    """Executes commands on a store, notes their kinds, and appends a record when a reader waits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.clock, self.limits = session.clock, session.limits
        self.kinds: list[type[Command[Any]]] = []
        self.appends = threading.Event()

    def execute(self, command: Command[T]) -> T:
        """Execute a command."""
        self.kinds.append(type(command))
        if isinstance(command, WaitForOffset) and self.appends.is_set():
            self.appends.clear()
            Log(self._session, command.log).append(b"awaited")
        return self._session.execute(command)

    def close(self) -> None:
        """Leave the store open for its owner."""


@pytest.fixture
def session(ms: Millstream) -> CountingSession:
    return CountingSession(ms.session)


def test_an_awaited_record_is_taken_by_a_single_read_and_a_look_at_the_extent(
    session: CountingSession,
) -> None:
    log = Log(session, "orders")
    log.append(b"first")
    cursor = log.cursor("billing", start="earliest")
    assert [record.text for record in cursor.take(10)] == ["first"]
    session.appends.set()
    session.kinds.clear()
    assert [record.text for record in cursor.take(10, wait=10)] == ["awaited"]
    assert session.kinds == [GetExtent, WaitForOffset, ReadBlocks, GetExtent]


def test_a_tail_reads_an_awaited_record_by_a_single_request(session: CountingSession) -> None:
    log = Log(session, "orders")
    log.append(b"first")
    tail = log.tail(0)
    assert next(tail).text == "first"
    session.appends.set()
    session.kinds.clear()
    assert next(tail).text == "awaited"
    assert session.kinds == [WaitForOffset, ReadBlocks]


def test_reads_of_a_consumer_wait_for_no_acknowledgement(session: CountingSession) -> None:
    log = Log(session, "orders")
    log.append_many(range(100))
    with log.consumer("billing", prefetch=10, linger=60, timeout=0) as consumer:
        for record in consumer:
            consumer.ack(record)
        assert Acknowledge not in session.kinds
    assert session.kinds.count(Acknowledge) == 1
    assert log.cursor("billing").info().floor == 100
