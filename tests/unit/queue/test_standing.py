"""Promise: who routes a queue from outside learns where it stands, and assigns each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import NotFound
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.queue.service.bulk_reads import ListPositions, SourcePosition


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


def test_a_queue_says_where_it_stands(store: Millstream) -> None:
    store.log("orders").append_many([b"%d" % n for n in range(10)])
    store.log("returns").append(b"x")
    store.log("other").append(b"x")
    store.queue("work", sources=["orders", "ret*"], start="earliest", router="spark").put("own")
    store.log("orders").truncate(before=2)
    session = store.session
    assert session.execute(ListPositions("work")) == [
        SourcePosition("orders", 0, 2, 10),
        SourcePosition("returns", 0, 0, 1),
    ]
    session.execute(AssignMessages([Assignment("work", "orders", 0, 7, [(3, 2)])]))
    assert session.execute(ListPositions("work"))[0] == SourcePosition("orders", 7, 2, 10)
    with pytest.raises(NotFound, match="no queue 'none'"):
        session.execute(ListPositions("none"))


def test_runs_are_found_whatever_entries_they_lie_in(store: Millstream) -> None:
    log = store.log("orders")
    for first in range(0, 60, 20):  # a block, some single records, and again
        log.append_many([b"%d" % n for n in range(first, first + 15)])
        for n in range(first + 15, first + 20):
            log.append(b"%d" % n)
    queue = store.queue("work", sources=["orders"], start="earliest", router="spark")
    runs = [(0, 1), (2, 3), (13, 4), (18, 24), (45, 1), (58, 2)]
    wanted = [at + i for at, count in runs for i in range(count)]
    command = AssignMessages([Assignment("work", "orders", 0, 60, runs)])
    assert [store.session.execute(command) for _ in range(2)] == [len(wanted), 0]
    claimed = queue.claim(100)
    assert [message.offset for message in claimed] == wanted
    assert [int(message.value) for message in claimed] == wanted


def test_what_the_log_has_dropped_is_passed_over(store: Millstream) -> None:
    log = store.log("orders")
    for n in range(20):
        log.append(b"%d" % n)
    log.truncate(before=10)
    store.fold()
    for _ in range(20):
        log.enforce_retention()
    queue = store.queue("work", sources=["orders"], start="earliest", router="spark")
    runs = [(2, 3), (8, 4), (15, 1)]
    store.session.execute(AssignMessages([Assignment("work", "orders", 0, 20, runs)]))
    assert [message.offset for message in queue.claim(100)] == [10, 11, 15]
