"""Waiting: until there is a record, or the time is up. Threads meet at events, nobody sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Log, Millstream
from millstream.embedded.session import EmbeddedSession
from millstream.errors import Closed
from millstream.testing import Probe

TOO_LONG_S = 30


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Millstream]:
    """On the machine's own clock: these waits are real, and short."""
    with millstream.open(tmp_path / "wait.db") as ms:
        yield ms


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("x")


class Waiter(threading.Thread):
    """Runs a call, and keeps what it answered or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.call()
        except Exception as error:
            self.answer = error

    def result(self) -> Any:
        self.join(TOO_LONG_S)
        assert not self.is_alive(), "it still waits"
        return self.answer


def until_somebody_waits(ms: Millstream) -> None:
    probe = Probe(ms)
    probe.until(lambda: probe.waiting() > 0)


def test_what_is_there_is_not_waited_for(log: Log) -> None:
    log.append_many([b"0", b"1"])

    assert log.wait(0)
    assert log.wait(1, timeout=0)
    assert not log.wait(2, timeout=0)


def test_the_time_can_be_up(log: Log) -> None:
    assert not log.wait(0, timeout=0.01)
    assert not log.wait(0, timeout=timedelta(milliseconds=10))
    assert list(log.tail(timeout=0.01)) == []
    assert log.cursor("c").take(wait=0.01) == []


def test_an_append_wakes_who_waits_for_that_offset(ms: Millstream, log: Log) -> None:
    waiter = Waiter(lambda: log.wait(1))
    until_somebody_waits(ms)
    log.append(b"0")
    assert waiter.is_alive()
    log.append(b"1")

    assert waiter.result() is True


def test_an_append_through_another_handle_wakes(ms: Millstream, log: Log, tmp_path: Path) -> None:
    log.append(b"0")
    waiter = Waiter(lambda: log.wait(1))
    until_somebody_waits(ms)
    with millstream.open(tmp_path / "wait.db") as other:
        other.log("x").append(b"1")

        assert waiter.result() is True


def test_a_log_that_is_made_anew_wakes(ms: Millstream, log: Log) -> None:
    log.append(b"0")
    waiter = Waiter(lambda: log.wait(1))
    until_somebody_waits(ms)
    log.delete()
    log.append_many([b"0", b"1"])

    assert waiter.result() is True


def test_closing_wakes_with_closed(ms: Millstream, log: Log) -> None:
    waiter = Waiter(lambda: log.wait(0))
    until_somebody_waits(ms)
    ms.close()

    assert isinstance(waiter.result(), Closed)


def test_a_tail_begins_where_it_is_told_and_follows(ms: Millstream, log: Log) -> None:
    log.append_many([b"0", b"1", b"2"])
    tail = log.tail(1)
    assert [next(tail).offset, next(tail).offset] == [1, 2]
    waiter = Waiter(lambda: next(tail))
    until_somebody_waits(ms)
    log.append(b"3")

    assert waiter.result().value == b"3"


def test_a_tail_without_a_start_begins_at_the_end(ms: Millstream, log: Log) -> None:
    log.append(b"before")
    waiter = Waiter(lambda: next(log.tail()))
    until_somebody_waits(ms)
    log.append(b"after")

    assert waiter.result().value == b"after"


def test_a_tail_ends_when_nothing_comes(log: Log) -> None:
    log.append_many([b"0", b"1"])

    assert [record.offset for record in log.tail(0, timeout=0.01)] == [0, 1]


def test_a_take_waits_for_its_first_record(ms: Millstream, log: Log) -> None:
    cursor = log.cursor("c")
    waiter = Waiter(lambda: cursor.take(5, wait=TOO_LONG_S))
    until_somebody_waits(ms)
    log.append(b"0")

    assert [record.offset for record in waiter.result()] == [0]


def test_a_record_that_comes_between_looking_and_waiting_is_taken(ms: Millstream) -> None:
    from millstream.log import commands as c
    from millstream.threads.cursor import open_cursor

    class LateAppend(EmbeddedSession):
        """Appends just after the cursor has looked at the end of the log for the first time."""

        appended = False

        def execute(self, command: Any) -> Any:
            answer = super().execute(command)
            if isinstance(command, c.GetExtent) and not self.appended:
                self.appended = True
                ms.log("x").append(b"late")
            return answer

    late = LateAppend(Probe(ms).store)
    cursor = open_cursor(late, Log(late, "x"), "c", durable=True, start="earliest", section=10)
    late.appended = False

    assert [record.value for record in cursor.take(wait=0.05)] == [b"late"]
