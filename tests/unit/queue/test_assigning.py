"""Promise: what somebody else assigns is placed once, from where the queue stands, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import Conflict, InvalidInput, NotFound, OutOfRange
from millstream.queue.service.assignment import ASSIGNED_MAX, Assignment, AssignMessages, Wish
from millstream.threads.queue import Queue


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    """Routed by somebody else, over a log of ten records and one that was appended alone."""
    made = ms.queue("q", sources=["jobs*"], router="spark", start="earliest", filter="a = 1")
    ms.log("jobs").append_many([b"%d" % i for i in range(10)])
    ms.log("jobs").append(b"10")
    return made


def assign(ms: Millstream, start: int, stop: int, *runs: tuple[int, int], **more: Any) -> int:
    assignment = Assignment("q", "jobs", start, stop, list(runs), **more)
    return ms.session.execute(AssignMessages([assignment]))


def claimed(queue: Queue) -> list[int]:
    return [int(message.value) for message in queue.claim(100)]


def test_nothing_comes_by_itself_but_what_is_put(ms: Millstream, queue: Queue) -> None:
    assert claimed(queue) == []
    queue.put(b"99")
    assert claimed(queue) == [99]


def test_the_same_offsets_are_placed_once(ms: Millstream, queue: Queue) -> None:
    assert assign(ms, 0, 6, (1, 2), (5, 1)) == 3
    assert assign(ms, 0, 6, (1, 2), (5, 1)) == 0
    assert assign(ms, 3, 11, (4, 2), (9, 2)) == 2
    assert claimed(queue) == [1, 2, 5, 9, 10]


def test_what_was_not_assigned_is_passed_over_for_good(ms: Millstream, queue: Queue) -> None:
    assert queue.info().unrouted == 11
    assert assign(ms, 0, 8) == 0
    assert queue.info().unrouted == 3
    assert assign(ms, 0, 8, (0, 8)) == 0


def test_a_gap_is_refused_where_it_is_said_to_be_one(ms: Millstream, queue: Queue) -> None:
    with pytest.raises(Conflict, match="stands at offset 0 of log 'jobs'") as caught:
        assign(ms, 2, 4, (2, 1), gapless=True)
    assert caught.value.position == 0
    assert assign(ms, 0, 2, gapless=True) == 0
    assert assign(ms, 2, 4, (2, 1), gapless=True) == 1
    assert assign(ms, 2, 4, (2, 1), gapless=True) == 0


def test_several_queues_are_assigned_in_one_commit_or_not_at_all(
    ms: Millstream, queue: Queue
) -> None:
    good = Assignment("q", "jobs", 0, 2, [(0, 2)])
    with pytest.raises(NotFound):
        ms.session.execute(AssignMessages([good, Assignment("none", "jobs", 0, 1, [])]))
    assert claimed(queue) == []
    ms.queue("r", sources=["jobs"], router="spark", start="earliest")
    other = Assignment("r", "jobs", 0, 11, [(10, 1)])
    before = ms.stats()["sequence"]
    assert ms.session.execute(AssignMessages([good, other])) == 3
    assert ms.stats()["sequence"] == before + 1
    assert claimed(ms.queue("r")) == [10]


def test_wishes_count_and_headers_are_looked_at_without_them(ms: Millstream) -> None:
    queue = ms.queue("q", sources=["jobs"], router="spark", start="earliest", priority_by="p")
    ms.log("jobs").append_many([b"%d" % i for i in range(4)], headers=[{"p": i} for i in range(4)])
    assign(ms, 0, 2, (0, 2))
    assign(ms, 2, 4, (2, 2), wishes=[Wish(priority=9), Wish(delay_ms=5_000)])
    assert claimed(queue) == [2, 1, 0]
    assert queue.info().delayed == 1


def test_what_is_assigned_keeps_its_bytes(ms: Millstream, queue: Queue) -> None:
    assign(ms, 0, 11, (3, 1), (10, 1))
    ms.log("jobs").truncate(before=11)
    ms.log("jobs").enforce_retention()
    ms.fold()
    assert claimed(queue) == [3, 10]


@pytest.mark.parametrize(
    ("assignment", "error", "message"),
    [
        (Assignment("q", "jobs", 0, 12, []), OutOfRange, "there is no offset 11"),
        (Assignment("q", "gone", 0, 1, []), InvalidInput, "does not take from log 'gone'"),
        (Assignment("q", "jobs2", 0, 1, []), OutOfRange, "ends at 0"),
        (Assignment("q", "jobs", 0, 5, [(3, 1), (2, 1)]), InvalidInput, "in order"),
        (Assignment("q", "jobs", 3, 5, [(2, 1)]), InvalidInput, "in order"),
        (Assignment("q", "jobs", 0, 5, [(4, 2)]), InvalidInput, "in order"),
        (Assignment("q", "jobs", 0, 5, [(4, 0)]), InvalidInput, "in order"),
        (Assignment("q", "jobs", -1, 5, []), InvalidInput, "offset|start"),
        (Assignment("q", "jobs", 0, 5, [(0, 2)], [Wish()]), InvalidInput, "one wish per message"),
        (Assignment("q", "jobs", 0, 5, [(0, 1)], [Wish(1)]), InvalidInput, "look at a priority"),
        (Assignment("q", "jobs", 0, 5, [(0, 1)], [Wish(group="g")]), InvalidInput, "at a group"),
        (Assignment("q", "jobs", 0, 5, [(0, 1)], [Wish(delay_ms=-1)]), InvalidInput, "delay"),
        (Assignment("own", "jobs", 0, 5, []), InvalidInput, "routes its messages itself"),
    ],
)
def test_what_makes_no_sense_is_refused(
    ms: Millstream,
    queue: Queue,
    assignment: Assignment,
    error: type[Exception],
    message: str,
) -> None:
    ms.queue("own", sources=["jobs"])
    with pytest.raises(error, match=message):
        ms.session.execute(AssignMessages([assignment]))
    assert claimed(queue) == []


def test_too_many_at_once_are_refused(ms: Millstream, queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="the limit is 50,000"):
        assign(ms, 0, 5, (0, ASSIGNED_MAX + 1))


def test_a_router_is_one_of_those_that_exist(ms: Millstream) -> None:
    with pytest.raises(InvalidInput, match="router is 'spark'"):
        ms.queue("x", router="flink")
