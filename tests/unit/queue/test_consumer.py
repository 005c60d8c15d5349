"""A consumer of a queue on threads: single messages, claimed ahead and acknowledged in groups."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Message, Millstream, Queue
from millstream.errors import Closed, InvalidInput, LeaseLost, NotFound, TooLarge
from millstream.streaming.claim_prefetching import ClaimPrefetching

PATIENCE_S = 60
SOON_S = 0.05


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "a.db", durability="relaxed") as store:
        yield store


@pytest.fixture
def jobs(ms: Millstream) -> Queue:
    return ms.queue("jobs", max_attempts=3, backoff=0, lease=3600)


def counts(queue: Queue) -> tuple[int, int, int, int]:
    """Return how many messages wait, are in flight, done and failed."""
    info = queue.info()
    return info.available + info.unrouted + info.delayed, info.in_flight, info.done, info.failed


def test_every_message_comes_once_and_in_order(jobs: Queue) -> None:
    jobs.put_many(range(1_000))
    with jobs.consumer(prefetch=64, timeout=0) as consumer:
        numbers = []
        for message in consumer:
            numbers.append(message.json())
            consumer.ack(message)
    assert numbers == list(range(1_000))
    assert counts(jobs) == (0, 0, 1_000, 0)


def test_a_later_loop_gets_the_messages_that_came_since(jobs: Queue) -> None:
    with jobs.consumer(timeout=0, auto_ack=True) as consumer:
        assert [message.text for message in consumer] == []
        jobs.put("a")
        assert [message.text for message in consumer] == ["a"]
        assert [message.text for message in consumer] == []
    assert counts(jobs) == (0, 0, 1, 0)


def test_a_loop_waits_for_messages_until_a_stop(jobs: Queue) -> None:
    heard = threading.Event()
    texts: list[str] = []

    def consume() -> None:
        with jobs.consumer() as consumer:
            consumers.append(consumer)
            for message in consumer:
                texts.append(message.text)
                consumer.ack(message)
                heard.set()

    consumers: list[millstream.QueueConsumer] = []
    thread = threading.Thread(target=consume)
    thread.start()
    for text in ("a", "b"):
        heard.clear()
        jobs.put(text)
        assert heard.wait(PATIENCE_S)
    consumers[0].stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert texts == ["a", "b"]
    assert counts(jobs) == (0, 0, 2, 0)


def test_acknowledgements_are_durable_after_a_flush(jobs: Queue) -> None:
    jobs.put_many(range(10))
    with jobs.consumer(linger=PATIENCE_S) as consumer:
        for _, message in zip(range(4), consumer, strict=False):
            consumer.ack(message)
        consumer.flush()
        assert jobs.info().done == 4


def test_acknowledgements_of_a_slow_loop_are_sent_after_linger(jobs: Queue) -> None:
    jobs.put_many(range(10))
    with jobs.consumer(linger=0.001) as consumer:
        consumer.ack(next(iter(consumer)))
        deadline = threading.Event()
        for _ in range(int(PATIENCE_S / SOON_S)):
            if jobs.info().done == 1:
                break
            deadline.wait(SOON_S)
        assert jobs.info().done == 1


def test_prefetched_messages_return_without_a_failed_attempt(jobs: Queue) -> None:
    jobs.alter(max_attempts=1)
    jobs.put_many(range(10))
    with jobs.consumer(prefetch=5) as consumer:
        for message in consumer:
            assert jobs.info().in_flight == 5
            consumer.ack(message)
            break
    assert counts(jobs) == (9, 0, 1, 0)


def test_a_yielded_message_that_is_not_settled_can_be_claimed_again_at_once(jobs: Queue) -> None:
    jobs.put("a")
    with jobs.consumer() as consumer:
        for _ in consumer:
            break
    (message,) = jobs.claim(2)
    assert (message.text, message.attempt) == ("a", 2)
    assert jobs.attempts(message)[0].reason == "its consumer ended without an acknowledgement"


def test_a_stop_fails_no_last_attempt(jobs: Queue) -> None:
    jobs.alter(max_attempts=1)
    jobs.put("a")
    with jobs.consumer() as consumer:
        for _ in consumer:
            break
    assert counts(jobs) == (1, 0, 0, 0)


def test_an_exception_in_the_loop_counts_as_a_failed_attempt(jobs: Queue) -> None:
    jobs.alter(max_attempts=1)
    jobs.put_many(["bad", "good"])

    def consume() -> None:
        with jobs.consumer(auto_ack=True) as consumer:
            for _ in consumer:
                raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        consume()
    assert counts(jobs) == (1, 0, 0, 1)
    (failed,) = jobs.failed()
    assert failed.reason.startswith("ZeroDivisionError: no")


def test_auto_ack_acknowledges_when_the_loop_asks_for_the_next_message(jobs: Queue) -> None:
    jobs.put_many(range(3))
    with jobs.consumer(auto_ack=True) as consumer:
        loop = iter(consumer)
        next(loop)
        consumer.flush()
        assert jobs.info().done == 0
        next(loop)
        consumer.flush()
        assert jobs.info().done == 1
    assert counts(jobs) == (2, 0, 1, 0)


@pytest.mark.parametrize("is_sent", [False, True])
def test_auto_ack_leaves_failed_messages_alone(jobs: Queue, is_sent: bool) -> None:
    jobs.put_many(["good", "bad", "good"])
    with jobs.consumer(auto_ack=True, timeout=0) as consumer:
        for message in consumer:
            if message.text == "bad":
                consumer.fail(message)
                if is_sent:
                    consumer.flush()
        consumer.flush()
    info = jobs.info()
    assert (info.done, info.failed, info.available) == (2, 1, 0)


def test_nack_and_fail_end_attempts(jobs: Queue) -> None:
    jobs.put_many(["again", "never", "later"])
    texts = []
    with jobs.consumer(timeout=0) as consumer:
        for message in consumer:
            texts.append((message.text, message.attempt))
            if message.text == "never":
                consumer.fail(message, reason="bad", error=b"why")
            elif message.text == "later":
                consumer.nack(message, delay=3600)
            elif message.attempt == 1:
                consumer.nack(message, delay=0, reason="not now")
            else:
                consumer.ack(message, result=b"42")
            consumer.flush()
    assert texts == [("again", 1), ("never", 1), ("later", 1), ("again", 2)]
    info = jobs.info()
    assert (info.done, info.failed, info.delayed, info.in_flight) == (1, 1, 1, 0)
    (done,) = jobs.peek(state="done")
    assert done.id is not None
    assert jobs.message(done.id).result == b"42"


def test_a_lost_lease_is_reported_and_the_other_acknowledgements_are_done(jobs: Queue) -> None:
    jobs.put_many(["stolen", "kept", "kept too"])
    with jobs.consumer(linger=PATIENCE_S) as consumer:
        held = [message for _, message in zip(range(3), consumer, strict=False)]
        jobs.fail(held[0])
        for message in held:
            consumer.ack(message)
        with pytest.raises(LeaseLost, match="1 messages of 'jobs' were settled after"):
            consumer.flush()
        consumer.flush()  # a loss is reported once
        assert consumer.lost == 1
    assert counts(jobs) == (0, 0, 2, 1)


def test_a_refill_with_a_lost_lease_goes_on(jobs: Queue) -> None:
    jobs.put_many(range(6))
    numbers = []
    with jobs.consumer(prefetch=2, timeout=0, linger=PATIENCE_S) as consumer:
        for message in consumer:
            numbers.append(message.json())
            if message.json() == 1:
                jobs.ack(message)
                jobs.claim(0)
            if message.json() == 2:
                jobs.fail(message)
            consumer.ack(message)
        assert consumer.lost == 1
    assert numbers == list(range(6))
    assert counts(jobs) == (0, 0, 5, 1)


def test_prefetch_bounds_what_is_in_flight(jobs: Queue) -> None:
    jobs.put_many(range(100))
    flights = []
    with jobs.consumer(prefetch=10, timeout=0, linger=0) as consumer:
        for message in consumer:
            flights.append(jobs.info().in_flight)
            consumer.ack(message)
    assert max(flights) <= 10


def test_a_loop_without_a_free_place_waits_for_an_acknowledgement(jobs: Queue) -> None:
    jobs.put_many(range(4))
    held: list[Message] = []
    is_full = threading.Event()

    def release() -> None:
        assert is_full.wait(PATIENCE_S)
        consumer.ack(held[0])

    with jobs.consumer(prefetch=2) as consumer:
        helper = threading.Thread(target=release)
        helper.start()
        for message in consumer:
            held.append(message)
            if len(held) == 2:
                is_full.set()
            if len(held) == 3:
                break
        helper.join()
    assert [message.json() for message in held] == [0, 1, 2]


def test_leases_are_renewed_while_the_loop_works(ms: Millstream, jobs: Queue) -> None:
    jobs.put_many(["slow", "waits"])
    ended = threading.Event()
    with jobs.consumer(lease=3) as consumer:
        message = next(iter(consumer))
        untils = {one.until for one in jobs.peek(2, state="in_flight")}
        for _ in range(int(PATIENCE_S / SOON_S)):
            if len(untils) >= 4:  # longer than the lease
                break
            ended.wait(SOON_S)
            untils |= {one.until for one in jobs.peek(2, state="in_flight")}
        assert len(untils) >= 4
        assert jobs.claim(2) == []
        assert consumer.renew(message) is not None
        consumer.ack(message)
    assert counts(jobs) == (1, 0, 1, 0)


def test_several_threads_settle_messages_in_any_order(jobs: Queue) -> None:
    jobs.put_many(range(300))
    with jobs.consumer(prefetch=32, timeout=0) as consumer:
        held = []
        helpers = []
        for message in consumer:
            held.append(message)
            if len(held) == 8:
                batch, held = held[::-1], []
                helper = threading.Thread(target=lambda batch=batch: [*map(consumer.ack, batch)])
                helper.start()
                helpers.append(helper)
        for helper in helpers:
            helper.join()
        for message in held:
            consumer.ack(message)
    assert counts(jobs) == (0, 0, 300, 0)


def test_the_order_of_a_group_holds(ms: Millstream) -> None:
    queue = ms.queue("grouped", group_by="tenant", group_in_flight=1)
    for number in range(60):
        queue.put(number, group=f"g{number % 3}")
    numbers: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with queue.consumer(prefetch=16, timeout=0) as consumer:
        for message in consumer:
            assert queue.info().in_flight <= 3
            numbers[message.json() % 3].append(message.json())
            consumer.ack(message)
    assert numbers == {group: list(range(group, 60, 3)) for group in range(3)}


def test_a_message_with_a_higher_priority_comes_with_the_next_claim(ms: Millstream) -> None:
    queue = ms.queue("urgent", priority_by="priority")
    queue.put_many(range(4), headers=[{"priority": 1}] * 4)
    with queue.consumer(prefetch=2, timeout=0) as consumer:
        numbers = []
        for message in consumer:
            if message.json() == 0:
                queue.put(99, priority=9)
            numbers.append(message.json())
            consumer.ack(message)
    assert numbers == [0, 1, 99, 2, 3]


def test_a_consumer_names_misuse(ms: Millstream, jobs: Queue) -> None:
    with pytest.raises(InvalidInput, match="prefetch must be from 1 to 10,000 messages"):
        jobs.consumer(prefetch=0)
    with pytest.raises(InvalidInput, match="lease must be positive"):
        jobs.consumer(lease=0)
    with pytest.raises(NotFound), Queue(jobs.session, "missing").consumer():
        pass
    unused = jobs.consumer()
    with pytest.raises(InvalidInput, match="inside of its block"):
        next(iter(unused))
    jobs.put("a")
    (stranger,) = (other := ms.queue("other", sources="log", start="earliest")).claim() or [None]
    assert stranger is None
    ms.log("log").append("b")
    (stranger,) = other.claim()
    with jobs.consumer() as consumer:
        loop = iter(consumer)
        message = next(loop)
        with pytest.raises(InvalidInput, match="a message of queue 'jobs' is expected"):
            consumer.ack(stranger)
        with pytest.raises(InvalidInput, match="delay must be from 0"):
            consumer.nack(message, delay=-1)
        with pytest.raises(InvalidInput, match="a reason is text"):
            consumer.fail(message, reason=7)  # type: ignore[arg-type]
        with pytest.raises(TooLarge):
            consumer.nack(message, error=bytes(70_000))
        jobs.put("c")
        assert next(iter(consumer)).text == "c"
        with pytest.raises(InvalidInput, match="another loop began"):
            next(loop)
        with pytest.raises(InvalidInput, match="a consumer is used once"):
            consumer.__enter__()
    with pytest.raises(Closed):
        consumer.ack(message)
    with pytest.raises(Closed):
        consumer.flush()
    consumer.close()  # a second close does nothing


def test_a_message_that_was_peeked_at_is_not_settled(jobs: Queue) -> None:
    jobs.put_many(range(2))
    with jobs.consumer(prefetch=1) as consumer:
        message = next(iter(consumer))
        (peeked,) = jobs.peek()
        for settle in (consumer.ack, consumer.nack, consumer.fail, consumer.renew):
            with pytest.raises(InvalidInput, match="was peeked at"):
                settle(peeked)
        consumer.ack(message)
    assert counts(jobs) == (1, 0, 1, 0)


def test_copies_of_messages_settle_them(jobs: Queue) -> None:
    """A pool of processes hands copies back."""
    jobs.put_many(range(6))
    with jobs.consumer(prefetch=2, timeout=0) as consumer:
        for message in consumer:
            copied = pickle.loads(pickle.dumps(message))
            if message.json() % 2:
                consumer.fail(copied)
            else:
                consumer.ack(copied, result=b"%d" % message.json())
        assert consumer.lost == 0
    assert counts(jobs) == (0, 0, 3, 3)


def test_the_first_ending_of_a_message_counts(jobs: Queue) -> None:
    jobs.put_many(["acknowledged", "failed"])
    with jobs.consumer(timeout=0, linger=60) as consumer:
        for message in consumer:
            if message.text == "acknowledged":
                consumer.ack(message)
                consumer.nack(message, delay=0)
            else:
                consumer.fail(message)
                consumer.ack(message)
        consumer.flush()
    info = jobs.info()
    assert (info.done, info.failed, info.available) == (1, 1, 0)


def test_a_queue_that_is_deleted_ends_the_loop_with_its_error(jobs: Queue) -> None:
    jobs.put_many(range(3))

    def consume() -> None:
        with jobs.consumer(timeout=0) as consumer:
            for message in consumer:
                consumer.ack(message)
                jobs.delete()

    with pytest.raises(NotFound):
        consume()


def test_an_acknowledgement_of_another_thread_as_the_block_ends_is_sent(
    jobs: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.put("a")
    endings = ClaimPrefetching.endings

    def acknowledge_first(machine: ClaimPrefetching, error: BaseException | None) -> Any:
        consumer.ack(message)
        return endings(machine, error)

    monkeypatch.setattr(ClaimPrefetching, "endings", acknowledge_first)
    with jobs.consumer() as consumer:
        message = next(iter(consumer))
    assert counts(jobs) == (0, 0, 1, 0)


def test_a_claim_that_no_loop_has_seen_is_no_attempt(jobs: Queue) -> None:
    jobs.alter(max_attempts=2)
    jobs.put_many(["first", "second"])
    for _ in range(3):
        with jobs.consumer() as consumer:
            for message in consumer:
                assert message.text == "first"
                break
    claimed = {message.text: message for message in jobs.claim(2)}
    jobs.nack(claimed["second"], delay=0)
    assert counts(jobs)[3] == 0
    (again,) = jobs.claim(2)
    assert again.text == "second"
    jobs.nack(again, delay=0)
    assert counts(jobs)[3] == 1
