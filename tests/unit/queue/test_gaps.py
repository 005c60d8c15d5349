"""Truncation past the end of a log: queues go on behind the gap, and nothing in it was lost."""

from __future__ import annotations

from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.queue.service.bulk_reads import ListPositions, ListUnrouted
from millstream.testing import Probe
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, upkeep, values

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"group_by": "g"},
    "ranked": {"priority_by": "p"},
    "delayed": {"delay": 1},
    "filtered": {"filter": "g = 'x'"},
    "without repeats": {"dedup_by": "n"},
}
SOURCES = ("events", "eve*")
HEADERS = {"g": "x", "p": 3}


def make(ms: Millstream, kind: str, sources: str = "events") -> Queue:
    return ms.queue("jobs", sources=sources, **KINDS[kind])


def append(ms: Millstream, *found: bytes, log: str = "events") -> None:
    headers = [{**HEADERS, "n": f"{log} {value!r}"} for value in found]
    ms.log(log).append_many(list(found), headers=headers)


def drain(queue: Queue) -> list[bytes]:
    """Everything there is, one after the other: a group has one in flight at a time."""
    found = []
    while more := queue.claim(1):
        found += values(more)
        queue.ack(more)
    return found


def waiting(queue: Queue) -> int:
    """Messages to be claimed; the background may have routed them by now."""
    info = queue.info()
    assert info is not None
    return info.available + info.unrouted


def lost(queue: Queue) -> int:
    info = queue.info()
    assert info is not None
    return info.lost


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_before_anything_was_routed(
        self, ms: Millstream, clock: Any, kind: str, sources: str
    ) -> None:
        queue = make(ms, kind, sources)
        append(ms, b"a", b"b", b"c")
        ms.log("events").truncate(before=10, past_end=True)
        append(ms, b"d")
        clock.advance(2)
        assert waiting(queue) == 4
        assert drain(queue) == [b"a", b"b", b"c", b"d"]
        assert counts(queue) == {"done": 4}
        assert lost(queue) == 0

    def test_after_some_was_claimed(
        self, ms: Millstream, clock: Any, kind: str, sources: str
    ) -> None:
        queue = make(ms, kind, sources)
        append(ms, b"a", b"b", b"c")
        clock.advance(2)
        done = queue.claim(1)
        queue.ack(done)
        ms.log("events").truncate(before=10, past_end=True)
        append(ms, b"d", b"e")
        clock.advance(2)
        assert drain(queue) == [b"b", b"c", b"d", b"e"]
        assert lost(queue) == 0

    def test_after_all_was_done(self, reopen: Reopen, clock: Any, kind: str, sources: str) -> None:
        ms = reopen()
        queue = make(ms, kind, sources)
        append(ms, b"a", b"b", b"c")
        clock.advance(2)
        assert len(drain(queue)) == 3
        ms.log("events").truncate(before=10, past_end=True)
        ms.log("events").enforce_retention()
        append(ms, b"d")
        clock.advance(2)
        queue = reopen().queue("jobs")
        assert drain(queue) == [b"d"]
        assert lost(queue) == 0

    def test_before_the_queue_was_made(
        self, reopen: Reopen, clock: Any, kind: str, sources: str
    ) -> None:
        ms = reopen()
        append(ms, b"a", b"b", b"c")
        ms.log("events").truncate(before=10, past_end=True)
        queue = make(ms, kind, sources)
        append(ms, b"d")
        ms.log("events").truncate(before=20, past_end=True)
        append(ms, b"e")
        clock.advance(2)
        fold_all(ms)
        queue = reopen().queue("jobs")
        assert drain(queue) == [b"d", b"e"]
        assert lost(queue) == 0

    def test_several_gaps_and_a_fold(
        self, reopen: Reopen, clock: Any, kind: str, sources: str
    ) -> None:
        ms = reopen()
        queue = make(ms, kind, sources)
        for number in range(20):
            append(ms, b"%d" % number)
            ms.log("events").truncate(before=10 * (number + 1), past_end=True)
            ms.log("events").truncate(before=10 * (number + 1) + 2, past_end=True)
            if number % 3 == 0:
                fold_all(ms)
        clock.advance(2)
        ms = reopen()
        queue = ms.queue("jobs")
        assert waiting(queue) == 20
        assert drain(queue) == [b"%d" % number for number in range(20)]
        fold_all(ms)
        assert lost(queue) == 0


@pytest.mark.embedded
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_go_once_they_are_done(ms: Millstream, clock: Any, kind: str) -> None:
    queue = make(ms, kind)
    log = ms.log("events")
    append(ms, b"a", b"b", b"c")
    log.truncate(before=10, past_end=True)
    append(ms, b"d")
    log.truncate(before=11, past_end=True)
    clock.advance(2)
    assert drain(queue) == [b"a", b"b", b"c", b"d"]
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    info = log.info()
    assert info is not None
    assert info.bytes == 0
    append(ms, b"e")
    clock.advance(2)
    assert drain(queue) == [b"e"]


def test_a_lossy_queue_counts_what_was_there_and_no_more(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", lossy=True)
    log = ms.log("events")
    for number in range(40):
        append(ms, b"a", b"b", b"c")
        log.truncate(before=10 * (number + 1), past_end=True)
        log.enforce_retention()
    append(ms, b"d")
    assert values(queue.claim(10)) == [b"d"]
    assert lost(queue) == 120


def test_a_copy_that_begins_late_has_lost_nothing(ms: Millstream, tmp_path: Any) -> None:
    queue = make(ms, "plain", "dev.*")
    with millstream.open(tmp_path / "device.db", durability="relaxed") as device:
        log = device.log("dev.1")
        log.append_many([b"%d" % number for number in range(8)])
        log.truncate(before=5, past_end=True)
        device.sync(ms)
        assert values(queue.claim(10)) == [b"5", b"6", b"7"]
        assert lost(queue) == 0


@pytest.mark.embedded
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_forgets_what_the_hub_never_had(
    ms: Millstream, tmp_path: Any, clock: Any, kind: str
) -> None:
    queue = make(ms, kind, "dev.*")
    with millstream.open(tmp_path / "device.db", durability="relaxed", clock=clock) as device:
        append(device, b"a", b"b", log="dev.1")
        device.sync(ms)
        append(device, b"c", b"d", log="dev.1")
        device.log("dev.1").truncate(before=8, past_end=True)
        append(device, b"e", b"f", log="dev.1")
        device.sync(ms)
        assert (ms.log("dev.1").start_offset(), ms.log("dev.1").end_offset()) == (8, 10)
        clock.advance(2)
        assert drain(queue) == [b"a", b"b", b"e", b"f"]
        assert lost(queue) == 0


def test_two_logs_of_which_one_was_truncated(ms: Millstream, clock: Any) -> None:
    queue = ms.queue("jobs", sources=["one", "two"], group_by="g")
    append(ms, b"a", log="one")
    clock.advance(1)
    append(ms, b"b", log="two")
    ms.log("one").truncate(before=100, past_end=True)
    clock.advance(1)
    append(ms, b"c", log="one")
    clock.advance(1)
    append(ms, b"d", log="two")
    assert drain(queue) == [b"a", b"b", b"c", b"d"]


def test_forks_of_a_log_with_a_gap(ms: Millstream) -> None:
    ms.queue("held", sources="events")
    append(ms, b"a", b"b", b"c")
    ms.log("events").truncate(before=10, past_end=True)
    append(ms, b"d")
    fork = ms.log("events").fork("events.fork")
    queue = ms.queue("jobs", sources="events.*", start="earliest")
    fork.truncate(before=20, past_end=True)
    fork.append(b"e")
    assert values(queue.claim(10)) == [b"d", b"e"]
    fork.merge()
    assert values(ms.queue("held").claim(10)) == [b"a", b"b", b"c", b"d", b"e"]
    assert lost(queue) == lost(ms.queue("held")) == 0


def test_a_fork_that_a_pattern_finds_later(ms: Millstream) -> None:
    ms.queue("held", sources="events")
    queue = ms.queue("jobs", sources="ev.*")
    append(ms, b"a", b"b", b"c")
    ms.log("events").truncate(before=10, past_end=True)
    append(ms, b"d")
    ms.log("events").fork("ev.fork")
    assert values(queue.claim(10)) == [b"d"]
    assert lost(queue) == 0


def test_the_inboxes_of_a_queue(ms: Millstream, clock: Any) -> None:
    queue = ms.queue("jobs", lease=60)
    queue.put(b"a")
    queue.put(b"b", delay=5)
    for log in ("queue:jobs", "queue-later:jobs"):
        ms.log(log).truncate(before=50, past_end=True)
    queue.put(b"c")
    queue.put(b"d", delay=5)
    assert values(queue.claim(10)) == [b"a", b"c"]
    clock.advance(6)
    assert values(queue.claim(10)) == [b"b", b"d"]


def test_there_is_nothing_to_wait_for_in_a_gap(tmp_path: Any) -> None:
    with millstream.open(tmp_path / "real.db", durability="relaxed") as ms:
        queue = make(ms, "plain")
        append(ms, b"a")
        queue.ack(queue.claim(1))
        ms.log("events").truncate(before=10, past_end=True)
        assert queue.claim(1, wait=0.01) == []
        append(ms, b"b")
        assert values(queue.claim(1, wait=5)) == [b"b"]


def test_purging_and_peeking(ms: Millstream) -> None:
    queue = make(ms, "plain")
    append(ms, b"a", b"b")
    ms.log("events").truncate(before=10, past_end=True)
    append(ms, b"c")
    assert values(queue.peek(10)) == [b"a", b"b", b"c"]
    while (info := queue.info()) and info.unrouted:  # a commit of the background was in flight
        queue.peek(10)
    assert queue.purge() == 3
    append(ms, b"d")
    ms.log("events").truncate(before=20, past_end=True)
    append(ms, b"e")
    assert values(queue.claim(10)) == [b"d", b"e"]


@pytest.mark.parametrize("before", [1, 2, 10])
def test_purging_counts_what_is_not_routed_and_kept_for_the_queue(
    ms: Millstream, before: int
) -> None:
    """Its log has forgotten some of it, or goes on behind a gap."""
    Probe(ms).pause_keeper()
    queue = make(ms, "plain")
    append(ms, b"a", b"b")
    ms.log("events").truncate(before=before, past_end=True)
    assert queue.purge() == 2
    append(ms, b"c")
    assert values(queue.claim(10)) == [b"c"]


def test_info_names_the_oldest(ms: Millstream, clock: Any) -> None:
    queue = make(ms, "plain")
    append(ms, b"a")
    clock.advance(5)
    ms.log("events").truncate(before=10, past_end=True)
    append(ms, b"b")
    info = queue.info()
    assert info is not None
    assert info.oldest_s == 5
    (listed,) = ms.queues()
    assert listed.unrouted == 2


def test_messages_that_somebody_else_assigns(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", router="spark", group_by="g")
    session = ms.session
    append(ms, b"a", b"b", b"c")
    ms.log("events").truncate(before=10, past_end=True)
    append(ms, b"d", b"e")
    (standing,) = session.execute(ListPositions("jobs"))
    assert (standing.position, standing.start, standing.end) == (0, 10, 12)
    assert session.execute(ListUnrouted("jobs")) == []
    whole = Assignment("jobs", "events", 0, 12, [(1, 10)], gapless=True)
    assert session.execute(AssignMessages([whole])) == 3
    assert counts(queue) == {"available": 3}
    ms.log("events").truncate(before=20, past_end=True)
    append(ms, b"f")
    (standing,) = session.execute(ListPositions("jobs"))
    assert (standing.position, standing.end) == (20, 21)
    behind = Assignment("jobs", "events", 20, 21, [(20, 1)], gapless=True)
    assert session.execute(AssignMessages([behind])) == 1
    assert drain(queue) == [b"b", b"c", b"d", b"f"]


def test_the_oldest_of_several_logs_is_named(ms: Millstream, clock: Any) -> None:
    queue = ms.queue("jobs", sources="log.*")
    ms.log("log.z").append(b"oldest")
    clock.advance(5)
    ms.log("log.a").append(b"newer")
    clock.advance(5)
    info = queue.info()
    assert info is not None
    assert info.oldest_s == 10
    assert len(queue.peek(1)) == 1
    info = queue.info()
    assert info is not None
    assert info.oldest_s == 10
