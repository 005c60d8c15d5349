"""Trying again: backoff, delays, the last attempt, dead letters, and what is known of attempts."""

from __future__ import annotations

import pytest

from millstream import Limits, Millstream
from millstream.errors import InvalidInput, LeaseLost
from millstream.queue.model.backoff import Backoff
from millstream.record import moment
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, settle, values


def test_a_message_that_is_given_back_waits_for_the_backoff(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", backoff=5, lease=10)
    queue.put(b"a")
    queue.nack(queue.claim())
    assert counts(queue) == {"delayed": 1}
    clock.advance(4.999)
    assert queue.claim() == []
    clock.jump(-1_000)
    clock.advance(0.001)
    assert counts(queue) == {"available": 1}
    assert queue.claim()[0].attempt == 2


def test_a_delay_of_ones_own_replaces_the_backoff(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", backoff=5)
    queue.put_many([b"a", b"b"])
    one, two = queue.claim(2)
    queue.nack(one, delay=60)
    queue.nack(two, delay=0)
    assert values(queue.claim(5)) == [b"b"]
    clock.advance(59)
    settle(queue)
    clock.advance(1)
    assert b"a" in values(queue.claim(5))


def test_giving_back_twice_is_a_success_and_counts_once(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", backoff=5)
    queue.put(b"a")
    (message,) = queue.claim()
    queue.nack(message)
    queue.nack(message, delay=100)
    clock.advance(5)
    (again,) = queue.claim()
    with pytest.raises(LeaseLost):
        queue.nack(message)
    queue.ack(again)
    assert counts(queue) == {"done": 1}


def test_retries_come_before_what_was_never_claimed(ms: Millstream) -> None:
    queue = ms.queue("jobs", backoff=0)
    queue.put_many([b"a", b"b", b"c"])
    queue.nack(queue.claim())
    assert values(queue.claim(3)) == [b"a", b"b", b"c"]


def test_a_list_of_waits_is_followed_and_its_last_repeated(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", backoff=[1, 10], max_attempts=9)
    queue.put(b"a")
    for wait_s in (1, 10, 10):
        queue.nack(queue.claim())
        clock.advance(wait_s - 0.001)
        assert queue.claim() == []
        clock.advance(0.001)


def test_an_exponential_backoff_grows_up_to_its_most() -> None:
    backoff = Backoff(first=0.1, factor=3, most=2, jitter=0)
    assert [backoff.wait_ms(n, 0.5) for n in (1, 2, 3, 4, 60_000)] == [100, 300, 900, 2_000, 2_000]


def test_jitter_keeps_to_its_share() -> None:
    backoff = Backoff(kind="fixed", first=1, jitter=0.1)
    assert (backoff.wait_ms(1, 0.0), backoff.wait_ms(1, 1.0)) == (900, 1_100)


def test_a_message_out_of_attempts_has_failed(ms: Millstream) -> None:
    queue = ms.queue("jobs", max_attempts=2, backoff=0)
    queue.put(b"a")
    queue.nack(queue.claim(), reason="one")
    queue.nack(queue.claim(), reason="two")
    assert queue.claim() == []
    assert counts(queue) == {"failed": 1}
    (failed,) = queue.failed()
    assert (failed.value, failed.reason, failed.attempt) == (b"a", "two", 2)


def test_a_lease_that_ends_is_an_attempt(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", max_attempts=1, lease=10)
    queue.put(b"a")
    queue.claim()
    clock.advance(10)
    settle(queue)
    assert counts(queue) == {"failed": 1}
    assert [message.reason for message in queue.failed()] == ["lease expired"]


def test_failing_gives_up_whatever_attempts_are_left(ms: Millstream) -> None:
    queue = ms.queue("jobs", max_attempts=9)
    queue.put(b"a")
    (message,) = queue.claim()
    queue.fail(message, reason="bad")
    queue.fail(message, reason="again")
    assert [one.reason for one in queue.failed()] == ["bad"]
    with pytest.raises(LeaseLost):
        queue.ack(message)


def test_attempts_are_remembered_with_their_ends(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = ms.queue("jobs", max_attempts=4, backoff=0, lease=10)
    queue.put_many([b"a", b"b"])
    message = queue.claim(2, consumer="ann")[0]
    clock.advance(1)
    queue.nack(message, reason="busy")
    queue.claim(consumer="bob")
    clock.advance(10)
    settle(queue)
    ms.fold()
    ms = reopen()
    queue = ms.queue("jobs")
    (third,) = queue.claim(consumer="eve")
    assert third.claim_id == message.claim_id or queue.claim(consumer="eve")
    found = queue.attempts(message)
    begun, nacked, expired = (moment(clock.wall_ms() - ms) for ms in (11_000, 10_000, 0))
    assert [(one.claimed, one.consumer, one.outcome, one.reason) for one in found] == [
        (begun, "ann", "again", "busy"),
        (nacked, "bob", "again", "lease expired"),
        (expired, "eve", "in_flight", ""),
    ]
    assert [one.ended for one in found] == [nacked, expired, None]


def test_a_delayed_queue_holds_messages_back_in_order(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", delay=5, bucket_exponent=0)
    queue.put_many([b"a", b"b", b"c"])
    assert queue.claim(5) == []
    assert counts(queue) == {"delayed": 3}
    clock.jump(1_000)
    assert queue.claim(5) == []
    clock.advance(5)
    assert values(queue.claim(2)) == [b"a", b"b"]
    assert values(queue.claim(2)) == [b"c"]


def test_a_delayed_queue_keeps_its_order_over_a_change_of_bucket_size(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", delay=5, bucket_exponent=2)
    queue.put_many([b"a", b"b"])
    queue.claim()
    queue.alter(bucket_exponent=0)
    queue.put(b"c")
    queue.claim()
    clock.advance(5)
    assert values(queue.claim(5)) == [b"a", b"b", b"c"]


def test_a_delay_that_begins_later_loses_nothing(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", lease=100)
    queue.put_many([b"a", b"b", b"c"])
    assert values(queue.claim()) == [b"a"]
    queue.alter(delay=1)
    queue.put(b"d")
    found = values(queue.claim(5))
    clock.advance(5)
    assert found + values(queue.claim(5)) == [b"b", b"c", b"d"]


def test_a_delay_that_ends_loses_nothing(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", delay=5)
    queue.put(b"a")
    queue.claim()
    queue.alter(delay=0)
    queue.put(b"b")
    assert values(queue.claim(5)) == [b"b"]
    clock.advance(5)
    assert values(queue.claim(5)) == [b"a"]


def test_a_failed_message_is_published_as_a_dead_letter(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="events", dead_letter="dead", max_attempts=2, backoff=0)
    ms.log("events").append_many(
        [b"a", b"b"], keys=["k", None], headers=[{"n": 1}, None], timestamps=[5, 6]
    )
    queue.nack(queue.claim(consumer="ann")[0])
    clock.advance(1)
    first, second = queue.claim(2, consumer="bob")
    queue.nack(first, reason="no")
    queue.ack(second)
    (letter,) = ms.log("dead").read()
    assert (letter.value, letter.key, letter.timestamp, letter.headers["n"]) == (b"a", b"k", 5, 1)
    assert letter.headers["dead-letter-queue"] == "jobs"
    assert letter.headers["dead-letter-reason"] == "no"
    assert (letter.headers["dead-letter-log"], letter.headers["dead-letter-offset"]) == (
        "events",
        0,
    )


def test_headers_that_do_not_fit_a_letter_do_not_stop_the_queue(
    reopen: Reopen, clock: SimulatedClock
) -> None:
    ms = reopen(Limits(headers_bytes_max=200))
    queue = ms.queue("jobs", dead_letter="dead", max_attempts=1, lease=10)
    queue.put(b"a", headers={"x": "y" * 150})
    queue.put(b"b")
    queue.claim()
    clock.advance(10)
    settle(queue)
    assert values(queue.claim()) == [b"b"]


@pytest.mark.parametrize("delay", [1e15, -5])
def test_a_delay_out_of_range_is_refused(ms: Millstream, delay: float) -> None:
    queue = ms.queue("jobs", lease=10)
    queue.put(b"a")
    with pytest.raises(InvalidInput, match=r"from 0 to .*, not -?[0-9,]+"):
        queue.nack(queue.claim(), delay=delay)
