"""What a queue keeps: payloads that it needs, done messages for a while, and nothing for ever."""

from __future__ import annotations

import pytest

from millstream import Limits, Millstream
from millstream.errors import LeaseLost
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, settle, upkeep, values


def drop(ms: Millstream, name: str) -> None:
    log = ms.log(name)
    log.truncate(before=log.end_offset())
    log.enforce_retention()


@pytest.mark.parametrize("fold", [False, True])
def test_a_truncated_log_keeps_what_a_queue_has_not_finished(
    reopen: Reopen, clock: SimulatedClock, fold: bool
) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="events", bucket_exponent=0, backoff=50, lease=10)
    log = ms.log("events")
    for n in range(6):
        log.append(b"%d" % n)
    done, again, failed, _ = queue.claim(4)
    queue.ack(done)
    queue.nack(again)
    queue.fail(failed)
    if fold:
        fold_all(ms)
    drop(ms, "events")
    assert len(log) == 0
    fold_all(ms)
    drop(ms, "events")
    ms = reopen()
    queue = ms.queue("jobs")
    clock.advance(50)
    settle(queue)
    assert sorted(values(queue.claim(9))) == [b"1", b"3", b"4", b"5"]
    queue.redrive()
    assert values(queue.claim(9)) == [b"2"]


def test_the_bytes_of_a_finished_log_go(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=0)
    log = ms.log("events")
    for n in range(6):
        log.append(b"%d" % n)
    queue.ack(queue.claim(4))
    fold_all(ms)
    drop(ms, "events")
    assert [info.bytes for info in ms.logs() if info.name == "events"] != [0]
    queue.ack(queue.claim(4))
    fold_all(ms)
    drop(ms, "events")
    assert [info.bytes for info in ms.logs() if info.name == "events"] == [0]


def test_messages_of_a_deleted_log_can_still_be_worked_on(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=0)
    ms.log("events").append_many([b"a", b"b", b"c"])
    first = queue.claim()
    ms.log("events").delete()
    upkeep(ms)
    fold_all(ms)
    upkeep(ms)
    rest = queue.claim(5)
    assert values(rest) == [b"b", b"c"]
    queue.ack([*first, *rest])
    fold_all(ms)
    upkeep(ms)
    assert counts(queue) == {"done": 3}


def test_retention_by_count_does_not_skip_a_queue(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    log.retain(count=1)
    for n in range(5):
        log.append(b"%d" % n)
    log.enforce_retention()
    assert values(queue.claim(9)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def short(ms: Millstream) -> Queue:
    return ms.queue("jobs", bucket_exponent=0, done_retention=60, lease=10)


def test_done_messages_are_forgotten_after_their_retention(
    ms: Millstream, short: Queue, clock: SimulatedClock
) -> None:
    short.put_many([b"a", b"b"])
    messages = short.claim(2)
    short.ack(messages)
    clock.advance(59)
    upkeep(ms)
    short.ack(messages)
    assert counts(short) == {"done": 2}
    clock.advance(1)
    upkeep(ms)
    assert counts(short) == {}
    short.ack(messages)
    clock.advance(600)
    upkeep(ms)
    with pytest.raises(LeaseLost):
        short.ack(messages)
    short.put(b"c")
    assert values(short.claim(5)) == [b"c"]


def test_done_messages_stay_for_ever_if_the_retention_is_0(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=0, done_retention=0)
    queue.put(b"a")
    queue.ack(queue.claim())
    clock.advance(10**9)
    upkeep(ms)
    assert counts(queue) == {"done": 1}


def test_one_failed_message_does_not_keep_later_ones_from_being_forgotten(
    ms: Millstream, short: Queue, clock: SimulatedClock
) -> None:
    short.put_many([b"a", b"b", b"c"])
    failed, *done = short.claim(3)
    short.fail(failed)
    short.ack(done)
    clock.advance(60)
    upkeep(ms)
    assert counts(short) == {"failed": 1}


def test_upkeep_takes_ended_leases_back(
    ms: Millstream, short: Queue, clock: SimulatedClock
) -> None:
    short.put(b"a")
    short.claim()
    clock.advance(10)
    upkeep(ms)
    assert counts(short) == {"available": 1}


def test_what_is_forgotten_stays_so_after_a_reopen(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen(Limits(fold_deltas_min=1, fold_slice_deltas=1, entities_cached_max=1))
    queue = ms.queue("jobs", bucket_exponent=0, done_retention=60)
    queue.put_many([b"%d" % n for n in range(50)])
    queue.ack(queue.claim(49))
    clock.advance(60)
    upkeep(ms)
    assert counts(queue) == {"available": 1}
    queue = reopen().queue("jobs")
    assert counts(queue) == {"available": 1}
    assert values(queue.claim(5)) == [b"49"]
