"""Leases: who has a message, until when, and what a late or repeated acknowledgement is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, LeaseLost
from millstream.queue.commands import FinishClaims
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.message import Message
from millstream.record import moment
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, settle, values


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", lease=10, max_attempts=3, backoff=0, bucket_exponent=0)


def test_an_acknowledged_message_is_done_and_saying_so_again_is_a_success(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    messages = queue.claim(2)
    queue.ack(messages)
    queue.ack(messages)
    queue.ack(messages[1])
    assert counts(queue) == {"done": 2}


def test_an_acknowledgement_after_the_lease_is_refused(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    (message,) = queue.claim()
    clock.advance(10)
    for end in (queue.ack, queue.nack, queue.fail, queue.renew):
        with pytest.raises(LeaseLost):
            end(message)
    settle(queue)
    assert counts(queue) == {"available": 1}


def test_a_lease_holds_until_its_last_millisecond(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    (message,) = queue.claim()
    clock.advance(9.999)
    assert queue.claim() == []
    queue.ack(message)


def test_what_nobody_finished_in_time_is_delivered_again(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"a")
    (first,) = queue.claim()
    clock.advance(10)
    settle(queue)
    (second,) = queue.claim()
    assert (second.claim_id, second.attempt) == (first.claim_id, 2)
    with pytest.raises(LeaseLost):
        queue.ack(first)
    queue.ack(second)
    with pytest.raises(LeaseLost):
        queue.ack(first)
    assert counts(queue) == {"done": 1}


def test_the_claim_that_takes_a_lease_back_gives_the_message_out(
    ms: Millstream, queue: Queue, clock: SimulatedClock
) -> None:
    Probe(ms).pause_keeper()
    queue.put(b"a")
    queue.claim()
    clock.advance(10)
    assert values(queue.claim()) == [b"a"]


def test_a_wall_clock_that_jumps_ends_no_lease_and_freezes_none(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"a")
    (message,) = queue.claim()
    clock.jump(100_000)
    settle(queue)
    assert queue.claim() == []
    clock.jump(-900_000)
    clock.advance(10)
    settle(queue)
    assert values(queue.claim()) == [b"a"]
    with pytest.raises(LeaseLost):
        queue.ack(message)


def test_a_renewed_lease_counts_from_the_renewal(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    messages = queue.claim(2)
    clock.advance(9)
    assert queue.renew(messages[0]) == moment(clock.wall_ms() + 10_000)
    clock.advance(9)
    settle(queue)
    assert values(queue.claim(5)) == [b"b"]
    queue.ack(messages[0])


def test_a_renewal_of_several_is_all_or_nothing(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    held, done = queue.claim(2)
    queue.ack(done)
    clock.advance(5)
    with pytest.raises(LeaseLost):
        queue.renew([held, done])
    clock.advance(5)
    with pytest.raises(LeaseLost):
        queue.ack(held)


def test_a_consumer_may_ask_for_another_lease_up_to_the_most(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=10, lease_max=60)
    queue.put_many([b"a", b"b"])
    (short,), (long,) = queue.claim(lease=1), queue.claim(lease=1_000)
    now_ms = clock.wall_ms()
    assert (short.until, long.until) == (moment(now_ms + 1_000), moment(now_ms + 60_000))


def test_a_call_with_one_lost_lease_ends_nothing(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    (late,) = queue.claim(lease=1)
    (held,) = queue.claim()
    clock.advance(1)
    with pytest.raises(LeaseLost) as caught:
        queue.ack([late, held])
    assert caught.value.lost == [(late.claim_id, 1, 1)]
    settle(queue)
    assert counts(queue) == {"available": 1, "in_flight": 1}


def test_finish_each_ends_what_is_held_and_names_what_was_lost(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put_many([b"a", b"b"])
    (late,) = queue.claim(lease=1)
    (held,) = queue.claim()
    clock.advance(1)
    assert queue.finish_each([late, held], "ack") == [late]
    assert counts(queue)["done"] == 1


def test_acknowledging_and_claiming_is_one_step(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b", b"c"])
    first = queue.claim()
    second = queue.claim(ack=first)
    assert counts(queue) == {"available": 1, "in_flight": 1, "done": 1}
    clock.advance(10)
    with pytest.raises(LeaseLost):
        queue.claim(ack=second)
    settle(queue)
    assert counts(queue) == {"available": 2, "done": 1}


def test_a_popped_message_is_done(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    assert values(queue.pop(1)) == [b"a"]
    clock.advance(100)
    assert values(queue.pop(5)) == [b"b"]
    assert counts(queue) == {"done": 2}


@pytest.mark.parametrize("end", ["ack", "nack", "fail"])
def test_a_message_named_twice_in_a_call_ends_once(ms: Millstream, end: str) -> None:
    queue = ms.queue("jobs", backoff=Backoff(first=1_000, jitter=1.0), dead_letter="dead")
    queue.put(b"a")
    (message,) = queue.claim()
    getattr(queue, end)([message, message])
    state = {"ack": "done", "nack": "delayed", "fail": "failed"}[end]
    assert counts(queue) == {state: 1}


def test_a_late_failure_is_refused_also_if_the_message_failed_meanwhile(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=10, max_attempts=1)
    queue.put(b"a")
    (message,) = queue.claim()
    clock.advance(10)
    settle(queue)
    with pytest.raises(LeaseLost):
        queue.fail(message)


def test_leases_hold_over_a_fold_and_a_reopen(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=10, backoff=0)
    queue.put_many([b"a", b"b"])
    first, second = queue.claim(2)
    ms.fold()
    queue = reopen().queue("jobs")
    queue.ack(first)
    clock.advance(10)
    with pytest.raises(LeaseLost):
        queue.ack(second)
    settle(queue)
    assert values(queue.claim(5)) == [b"b"]


@pytest.mark.parametrize("count", [-1, 10_001])
def test_a_claim_for_too_many_is_refused(queue: Queue, count: int) -> None:
    with pytest.raises(InvalidInput):
        queue.claim(count)


def test_a_lease_that_is_not_positive_is_refused(queue: Queue) -> None:
    for lease in (0, 0.0, -1):
        with pytest.raises(InvalidInput, match="lease must be positive, got"):
            queue.claim(lease=lease)
        with pytest.raises(InvalidInput, match="lease must be positive, got"):
            queue.claim(lease=lease, wait=3600)
        with pytest.raises(InvalidInput, match="lease must be positive, got"):
            queue.worker(print, lease=lease)
    queue.put(b"a")
    with pytest.raises(InvalidInput, match="lease must be positive, got 0 ms"):
        queue.claim(lease=0)
    (message,) = queue.claim(lease=0.0001)
    with pytest.raises(InvalidInput, match="lease must be positive, got 0 ms"):
        queue.renew(message, lease=0)


def test_a_consumer_name_that_is_too_long_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="up to 128 bytes, not 129"):
        queue.claim(consumer="x" * 129)


def test_a_paused_queue_gives_nothing_out_but_takes_acknowledgements(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    held = queue.claim()
    queue.pause()
    assert queue.claim(5) == []
    queue.ack(held)
    queue.resume()
    assert values(queue.claim(5)) == [b"b"]


def test_a_transaction_acknowledges_and_publishes_together(
    ms: Millstream, queue: Queue, clock: SimulatedClock
) -> None:
    queue.put_many([b"a", b"b"])
    first, second = queue.claim(2)

    def finish(message: Message, result: bytes) -> None:
        with ms.transaction() as tx:
            tx.append("out", result)
            tx.ack(message)

    finish(first, b"A")
    clock.advance(10)
    with pytest.raises(LeaseLost):
        finish(second, b"B")
    assert [record.value for record in ms.log("out").read()] == [b"A"]
    settle(queue)
    assert counts(queue) == {"available": 1, "done": 1}


def test_a_failed_step_takes_the_acknowledgements_before_it_back(
    ms: Millstream, queue: Queue
) -> None:
    queue.put_many([b"a", b"b"])
    held, failed = queue.claim(2)
    queue.fail(failed)
    ms.fold()

    def finish_both() -> None:
        with ms.transaction() as tx:
            tx.ack(held)
            tx.ack(failed)

    with pytest.raises(LeaseLost):
        finish_both()
    assert counts(queue) == {"in_flight": 1, "failed": 1}
    queue.ack(held)


def test_many_threads_share_a_queue(ms: Millstream, queue: Queue) -> None:
    queue.put_many([b"%d" % n for n in range(300)])
    stale = queue.claim(1)[0]
    queue.nack(stale, delay=0)

    def work() -> list[bytes]:
        found = []
        while messages := queue.claim(3):
            with pytest.raises(LeaseLost):
                queue.ack([*messages, stale])
            queue.ack(messages)
            found += values(messages)
        return found

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work) for _ in range(6)]
        found = [value for one in workers for value in one.result(30)]
    assert sorted(found) == sorted(b"%d" % n for n in range(300))
    assert counts(queue) == {"done": 300}


@pytest.mark.parametrize(("off", "expected"), [(5, []), (10, [b"a"])])
def test_leases_run_on_while_the_machine_is_off(
    reopen: Reopen, clock: SimulatedClock, off: int, expected: list[bytes]
) -> None:
    queue = reopen().queue("jobs", lease=10)
    queue.put(b"a")
    queue.claim()
    clock.reboot(off=off)
    queue = reopen().queue("jobs")
    settle(queue)
    assert values(queue.claim()) == expected


def test_a_message_of_another_queue_is_refused(ms: Millstream, queue: Queue) -> None:
    other = ms.queue("other", lease=10, bucket_exponent=0)
    queue.put(b"a")
    other.put(b"b")
    queue.claim()
    with pytest.raises(InvalidInput):
        queue.ack(other.claim())
    assert counts(queue) == {"in_flight": 1}


@pytest.mark.parametrize("run", [(-1, 2, 1), (0, 0, 1), (0, 1, 0), (1 << 63, 1, 1)])
def test_what_is_no_run_of_claims_is_refused(
    ms: Millstream, queue: Queue, run: tuple[int, int, int]
) -> None:
    queue.put_many([b"a", b"b"])
    queue.claim(2)
    with pytest.raises(InvalidInput):
        ms.session.execute(FinishClaims(queue.name, [run], "ack"))
    assert counts(queue) == {"in_flight": 2}
