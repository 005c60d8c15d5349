"""Done messages are forgotten one by one, whatever else is in their bucket; repeats still succeed."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Limits, Millstream
from millstream.errors import LeaseLost
from millstream.format import keys
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, upkeep, values

KINDS: list[dict[str, Any]] = [{}, {"group_by": "g"}, {"priority_by": "p"}, {"delay": 1}]


def filled(ms: Millstream, count: int, **how: Any) -> Queue:
    queue = ms.queue("jobs", done_retention=60, lease=5_000, backoff=0, **how)
    headers = [{"g": f"g{n}", "p": n % 3} for n in range(count)]
    queue.put_many([b"%d" % n for n in range(count)], headers=headers)
    queue.peek(0)
    return queue


def rows(ms: Millstream, kind: int) -> int:
    return len(Probe(ms).rows(kind))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("folded", [False, True])
def test_what_is_done_goes_while_its_bucket_holds_others(
    ms: Millstream, clock: SimulatedClock, how: dict[str, Any], folded: bool
) -> None:
    queue = filled(ms, 12, **how)
    clock.advance(1)
    first, second, failed, held, *others = queue.claim(10)
    queue.ack(others)
    queue.fail(failed)
    clock.advance(30)
    queue.ack(second)
    queue.nack(first, delay=0)
    if folded:
        fold_all(ms)
    clock.advance(29)
    upkeep(ms)
    assert counts(queue) == {"available": 3, "in_flight": 1, "done": 7, "failed": 1}
    clock.advance(1)
    upkeep(ms)
    assert counts(queue) == {"available": 3, "in_flight": 1, "done": 1, "failed": 1}
    assert [one.claim_id for one in queue.peek(20, state="done")] == [second.claim_id]
    assert [queue.attempts(one) for one in others] == [[]] * 6
    assert [len(queue.attempts(one)) for one in (first, second, failed, held)] == [1, 1, 1, 1]
    clock.advance(30)
    upkeep(ms)
    assert counts(queue) == {"available": 3, "in_flight": 1, "failed": 1}
    queue.ack(held)
    assert len(queue.claim(9)) == 3
    assert queue.redrive() == 1
    if folded:
        fold_all(ms)
    (again,) = queue.claim(9)
    assert again.value == failed.value


def test_of_a_thousand_one_that_waits_keeps_none_of_the_others(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = filled(ms, 1_000)
    messages = queue.claim(1_000)
    queue.ack(messages[:123] + messages[124:])
    clock.advance(60)
    upkeep(ms)
    assert counts(queue) == {"in_flight": 1}
    queue.ack(messages[123])
    assert counts(queue) == {"done": 1}


@pytest.mark.parametrize("apart_s", [1, 7, 20])
def test_each_is_forgotten_within_a_minute_of_its_time(
    ms: Millstream, clock: SimulatedClock, apart_s: int
) -> None:
    queue = filled(ms, 20)
    done_s: list[int] = []
    now_s = 0
    for message in reversed(queue.claim(20)):
        queue.ack(message)
        done_s.append(now_s)
        clock.advance(apart_s)
        now_s += apart_s
        upkeep(ms)
        check(queue, done_s, now_s)
    for _ in range(20):
        clock.advance(10)
        now_s += 10
        upkeep(ms)
        check(queue, done_s, now_s)
    assert counts(queue) == {}


def check(queue: Queue, done_s: list[int], now_s: int) -> None:
    told = counts(queue).get("done", 0)
    kept = sum(at + 60 > now_s for at in done_s)
    late = sum(at + 60 > now_s - 60 for at in done_s)
    assert kept <= told <= late


@pytest.mark.parametrize("retention", [1, 60, 599, 601, 0])
@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("folded", [False, True])
def test_an_acknowledgement_can_be_repeated_for_ten_minutes(
    ms: Millstream, clock: SimulatedClock, retention: int, count: int, folded: bool
) -> None:
    queue = ms.queue("jobs", bucket_exponent=1, done_retention=retention)
    queue.put_many([b"%d" % n for n in range(count)])
    messages = queue.claim(count)
    queue.ack(messages)
    for _ in range(10):
        clock.advance(59)
        upkeep(ms)
        if folded:
            fold_all(ms)
        queue.ack(messages)
        assert queue.claim(ack=messages) == []
        with ms.transaction() as tx:
            tx.ack(messages)
        assert queue.finish_each(messages, "ack") == []
        with pytest.raises(LeaseLost):
            queue.nack(messages)
    clock.advance(100)
    upkeep(ms)
    if retention and count == 10:
        with pytest.raises(LeaseLost):
            queue.ack(messages)


def test_done_messages_are_kept_until_a_retention_is_set(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", done_retention=0)
    queue.put_many([b"a", b"b"])
    queue.ack(queue.claim())
    clock.advance(10**6)
    upkeep(ms)
    assert counts(queue) == {"done": 1, "available": 1}
    queue.alter(done_retention=60)
    upkeep(ms)
    assert counts(queue) == {"available": 1}


@pytest.mark.embedded
def test_nothing_is_left_of_buckets_that_get_nothing_more(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=1, done_retention=60, backoff=0)
    queue.put_many([b"%d" % n for n in range(45)])
    messages = queue.claim(40)
    queue.ack(messages[:33])
    queue.fail(messages[33:])
    clock.advance(60)
    upkeep(ms)
    assert queue.redrive(limit=3) == 3
    assert queue.purge(state="failed") == 4
    queue.purge()
    queue.alter(bucket_exponent=0)
    assert counts(queue) == {}
    clock.advance(600)
    upkeep(ms)
    fold_all(ms)
    assert (rows(ms, keys.BUCKET), rows(ms, keys.AGING)) == (0, 0)
    queue.put(b"more")
    (message,) = queue.claim()
    queue.ack(message)
    fold_all(ms)
    assert (rows(ms, keys.BUCKET), rows(ms, keys.AGING)) == (1, 1)
    queue.delete()
    fold_all(ms)
    assert (rows(ms, keys.BUCKET), rows(ms, keys.AGING)) == (0, 0)


@pytest.mark.embedded
def test_many_buckets_are_forgotten_a_few_at_a_time(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen(Limits(entities_cached_max=1))
    queue = ms.queue("jobs", bucket_exponent=1, done_retention=1_000)
    queue.put_many([b"%d" % n for n in range(995)])
    queue.ack(queue.claim(995))
    fold_all(ms)
    clock.advance(1_000)
    before = ms.stats()["commits"]
    upkeep(ms)
    assert counts(queue) == {}
    assert 5 <= ms.stats()["commits"] - before <= 15
    fold_all(ms)
    assert rows(ms, keys.BUCKET) == 1, "the last one is not full"


@pytest.mark.parametrize("folded", [False, True])
def test_payloads_are_kept_for_as_long_as_what_is_done_is_remembered(
    ms: Millstream, clock: SimulatedClock, folded: bool
) -> None:
    queue = ms.queue("jobs", sources="events", keep_payloads=True, done_retention=60, lease=500)
    log = ms.log("events")
    for n in range(4):
        log.append(b"%d" % n)
    first, failed, *others = queue.claim(4)
    queue.ack(first)
    queue.fail(failed)
    clock.advance(30)
    queue.ack(others)
    log.truncate(before=4)
    if folded:
        fold_all(ms)
    log.enforce_retention()
    assert values(queue.peek(9, state="done")) == [b"0", b"2", b"3"]
    clock.advance(30)
    upkeep(ms)
    log.enforce_retention()
    assert values(queue.peek(9, state="done")) == [b"2", b"3"]
    clock.advance(60)
    upkeep(ms)
    log.enforce_retention()
    assert counts(queue) == {"failed": 1}
    assert values(queue.peek(9, state="failed")) == [b"1"]
    if folded:
        fold_all(ms)
        log.enforce_retention()
        (info,) = [one for one in ms.logs() if one.name == "events"]
        assert 0 < info.bytes < 150
