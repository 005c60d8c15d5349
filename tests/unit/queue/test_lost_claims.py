"""An ending that is refused says what became of the message."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Message, Millstream
from millstream.errors import LeaseLost
from millstream.queue.model.message import named_message
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue
from tests.unit.queue.conftest import counts, settle

ENDINGS: dict[str, Any] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message),
    "fail": lambda queue, message: queue.fail(message),
    "renew": lambda queue, message: queue.renew(message),
}


def refused(queue: Queue, ending: str, messages: Any) -> LeaseLost:
    with pytest.raises(LeaseLost) as caught:
        ENDINGS[ending](queue, messages)
    assert caught.value.queue == queue.name
    return caught.value


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.create_queue("q", lease=10, backoff=0)


@pytest.fixture
def held(queue: Queue) -> Message:
    queue.put(b"x")
    return queue.claim()[0]


@pytest.mark.parametrize("ending", ["nack", "fail", "renew"])
def test_what_is_done_is_told(queue: Queue, held: Message, ending: str) -> None:
    queue.ack(held)
    error = refused(queue, ending, held)
    assert "done already" in str(error)
    assert (error.why, [list(run) for run in error.lost]) == (["done"], [[held.claim_id, 1, 1]])
    assert counts(queue) == {"done": 1}


@pytest.mark.parametrize("ending", ["ack", "nack", "renew"])
def test_what_has_failed_is_told(queue: Queue, held: Message, ending: str) -> None:
    queue.fail(held)
    error = refused(queue, ending, held)
    assert "failed already" in str(error)
    assert error.why == ["failed"]


@pytest.mark.parametrize("outcome", ["ack", "nack"])
def test_of_each_what_has_failed_is_lost(queue: Queue, held: Message, outcome: str) -> None:
    queue.fail(held)
    assert queue.finish_each(held, outcome) == [held]
    assert queue.finish_each(held, "fail") == []
    assert counts(queue) == {"failed": 1}


def test_giving_back_the_last_attempt_again_is_a_success(ms: Millstream) -> None:
    queue = ms.create_queue("once", lease=10, max_attempts=1)
    queue.put(b"x")
    (last,) = queue.claim()
    for _ in range(2):
        queue.nack(last)
        assert queue.finish_each(last, "nack") == []
    assert counts(queue) == {"failed": 1}


@pytest.mark.parametrize("ending", ["ack", "fail", "renew"])
def test_what_was_given_back_is_told(queue: Queue, held: Message, ending: str) -> None:
    queue.nack(held)
    error = refused(queue, ending, held)
    assert "given back" in str(error)
    assert error.why == ["given_back"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_claim_that_never_was_is_told(queue: Queue, held: Message, ending: str) -> None:
    for claim_id, attempt in ((held.claim_id, 2), (held.claim_id + 1, 1), (10**6, 1)):
        error = refused(queue, ending, named_message("q", claim_id, attempt))
        assert "not known" in str(error)
        assert error.why == ["unknown"]
    queue.ack(held)


def test_a_lease_that_ended_after_an_attempt_was_given_back_is_told(
    queue: Queue, held: Message, clock: SimulatedClock
) -> None:
    queue.nack(held)
    (again,) = queue.claim()
    clock.advance(10)
    assert refused(queue, "ack", again).why == ["expired"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("taken_back", [False, True])
def test_a_lease_that_ended_is_told(
    queue: Queue, held: Message, clock: SimulatedClock, ending: str, taken_back: bool
) -> None:
    clock.advance(11)
    if taken_back:
        settle(queue)
    error = refused(queue, ending, held)
    assert "lease ended" in str(error)
    assert error.why == ["expired"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_later_attempt_is_told(
    queue: Queue, held: Message, clock: SimulatedClock, ending: str
) -> None:
    clock.advance(11)
    settle(queue)
    clock.advance(2)
    (again,) = queue.claim()
    error = refused(queue, ending, held)
    assert "later attempt" in str(error)
    assert error.why == ["claimed_again"]
    queue.ack(again)
    assert refused(queue, "nack", held).why == ["done"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_redriven_is_not_known_any_more(queue: Queue, held: Message, ending: str) -> None:
    queue.fail(held)
    queue.redrive()
    assert refused(queue, ending, held).why == ["unknown"]


def test_of_several_each_is_told(queue: Queue) -> None:
    queue.put_many([b"a", b"b", b"c", b"d"])
    first, second, third, fourth = queue.claim(4)
    queue.ack(first)
    queue.fail(third)
    queue.fail(fourth)
    error = refused(queue, "nack", [first, second, named_message("q", 10**6, 1)])
    assert sorted(error.why) == ["done", "unknown"]
    error = refused(queue, "ack", [second, third, fourth])
    assert "2 messages have failed already" in str(error)
    assert counts(queue) == {"in_flight": 1, "done": 1, "failed": 2}


def test_a_transaction_says_the_same(ms: Millstream, queue: Queue, held: Message) -> None:
    queue.ack(held)

    def give_up() -> None:
        with ms.transaction() as tx:
            tx.fail(held)

    with pytest.raises(LeaseLost, match="done already") as caught:
        give_up()
    assert caught.value.why == ["done"]
