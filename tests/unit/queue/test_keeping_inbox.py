"""What was put straight to a queue: its inbox takes no more room than what is not done."""

from __future__ import annotations

from millstream import Millstream
from millstream.format import keys
from millstream.queue.model.spec import QueueSpec
from millstream.testing import SimulatedClock

from .conftest import Reopen, fold_all, upkeep, values
from .test_keeping_sparse import check, clear, rows


def test_an_inbox_takes_no_more_room_for_ever(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", done_retention=60)
    most = 0
    for turn in range(12):
        queue.put_many([b"%d" % n for n in range(50)])
        queue.put(b"alone")
        queue.ack(queue.claim(51))
        fold_all(ms)
        clock.advance(120)
        upkeep(ms)
        if turn == 3:
            most = sum(rows(ms).values())
    assert sum(rows(ms).values()) <= most + 2 * 12
    inbox = ms.log("queue:jobs")
    assert inbox.start_offset() == inbox.end_offset() == 12 * 51
    check(ms)


def test_an_inbox_begins_with_the_first_message_that_is_not_done(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=0)
    queue.put_many([b"%d" % n for n in range(10)])
    queue.ack(queue.claim(4))
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    assert [record.value for record in ms.log("queue:jobs").read()] == [
        b"%d" % n for n in range(4, 10)
    ]
    assert values(queue.claim(99)) == [b"%d" % n for n in range(4, 10)]


def test_a_message_that_failed_last_does_not_hold_its_block(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", lease=30)
    queue.put_many([b"%d" % n for n in range(100)])
    messages = queue.claim(100)
    queue.ack(messages[:-1])
    queue.fail(messages[-1])
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    assert values(queue.peek(5, state="failed")) == [b"99"]


def test_a_failed_message_does_not_hold_its_inbox(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = ms.queue("jobs", max_attempts=1, lease=5)
    queue.put(b"bad")
    queue.fail(queue.claim())
    for _ in range(10):
        queue.put_many([b"good"] * 20)
        queue.ack(queue.claim(20))
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    inbox = ms.log("queue:jobs")
    assert inbox.start_offset() == 201
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    ms = reopen()
    queue = ms.queue("jobs")
    assert values(queue.peek(5, state="failed")) == [b"bad"]
    queue.redrive()
    assert values(queue.claim(5)) == [b"bad"]
    check(ms)


def test_done_payloads_are_kept_where_the_queue_says_so(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs")
    queue.specify(QueueSpec(keep_payloads=True, done_retention=100))
    queue.put_many([b"a", b"b"])
    queue.ack(queue.claim(2))
    fold_all(ms)
    clock.advance(50)
    upkeep(ms)
    assert values(queue.peek(5, state="done")) == [b"a", b"b"]
    for _ in range(1_000):
        queue.put(b"")
        queue.ack(queue.claim())
    clock.advance(200)
    upkeep(ms)
    fold_all(ms)
    clock.advance(200)
    upkeep(ms)
    upkeep(ms)
    assert ms.log("queue:jobs").start_offset() >= 1_000


def test_a_queue_on_all_logs_holds_no_inbox_and_no_dead_letters(
    ms: Millstream, clock: SimulatedClock
) -> None:
    ms.queue("all", sources="events*", dead_letter="dead")
    queue = ms.queue("jobs", lease=30)
    queue.put_many([b"a"] * 10)
    queue.ack(queue.claim(10))
    ms.log("dead").append(b"letter")
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    clear(ms, "dead")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    (info,) = [info for info in ms.logs() if info.name == "dead"]
    assert info.bytes == 0


def test_what_was_put_for_later_goes_once_it_is_done(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", lease=30)
    queue.put_many([b"%d" % n for n in range(20)], delay=5)
    queue.put(b"much later", delay=1_000)
    clock.advance(6)
    queue.ack(queue.claim(20))
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    check(ms)
    clock.advance(1_000)
    assert values(queue.claim(5)) == [b"much later"]
