"""Cancels of messages in flight: a durable request, which the end of the attempt carries out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import InvalidInput, LeaseLost, NotFound, TooLarge
from millstream.queue.model.cancel_requests import RequestedCancels
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, counts, fold_all, settle, upkeep, values

KINDS: list[dict[str, Any]] = [{}, {"group_by": "g"}, {"priority_by": "p"}]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("ending", ["nack", "expired", "fail", "ack"])
def test_the_end_of_the_attempt_decides(
    ms: Millstream, clock: SimulatedClock, how: dict[str, Any], ending: str
) -> None:
    queue = ms.create_queue("q", lease=10, backoff=0, **how)
    first, second = (queue.put(b"%d" % n, headers={"g": "a", "p": 1}) for n in range(2))
    (message,) = queue.claim(1)
    assert queue.cancel(first, running=True) == "requested"
    assert queue.cancel(first) is False
    fate = queue.message(first)
    assert (fate.state, fate.is_cancel_requested) == ("in_flight", True)
    if ending == "expired":
        clock.advance(11)
        settle(queue)
    else:
        queue.finish_each(message, ending)  # type: ignore[arg-type]
    fate = queue.message(first)
    ends = {"nack": "cancelled", "expired": "cancelled", "fail": "failed", "ack": "done"}
    assert (fate.state, fate.is_cancel_requested) == (ends[ending], False)
    assert queue.cancel(first, running=True) is (ends[ending] == "cancelled")
    assert values(queue.claim(5)) == [b"1"]
    assert queue.message(second).state == "in_flight"
    assert queue.info().cancelled == (ends[ending] == "cancelled")
    assert counts(queue).get("in_flight") == 1


def test_a_message_that_waits_is_cancelled_at_once(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    assert queue.cancel(queue.put(b"x"), running=True) is True
    assert queue.cancel(queue.put(b"y", delay=10), running=True) is True
    assert queue.claim(2) == []


def test_only_the_requested_messages_of_a_batch_are_cancelled(ms: Millstream) -> None:
    queue = ms.create_queue("q", backoff=0)
    ids = queue.put_many([b"%d" % n for n in range(6)])
    messages = queue.claim(6)
    for at in (0, 3):
        assert queue.cancel(ids[at], running=True) == "requested"
    queue.nack(messages)
    queue.nack(messages)
    states = [queue.message(id).state for id in ids]
    assert states == ["cancelled", *["available"] * 2, "cancelled", *["available"] * 2]
    assert values(queue.claim(6)) == [b"1", b"2", b"4", b"5"]
    (attempt,) = queue.attempts(messages[3])
    assert attempt.outcome == "cancelled"
    with pytest.raises(LeaseLost, match="was cancelled"):
        queue.ack(messages[0])


def test_a_request_survives_a_restart(reopen: Reopen, clock: SimulatedClock) -> None:
    with reopen() as ms:
        queue = ms.create_queue("q", lease=10)
        id = queue.put(b"x")
        queue.claim(1)
        assert queue.cancel(id, running=True) == "requested"
    with reopen() as ms:
        queue = ms.queue("q")
        assert queue.message(id).is_cancel_requested
        clock.advance(11)
        settle(queue)
        fate = queue.wait(id, timeout=0)
        assert fate is not None
        assert fate.state == "cancelled"


def test_a_worker_learns_of_requests(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"a", b"b"])
    first, second = queue.claim(2)
    assert queue.wait_cancels(timeout=0) is None
    queue.cancel(ids[1], running=True)
    assert queue.wait_cancels(timeout=0) == RequestedCancels([second.claim_id], 1)
    assert queue.wait_cancels(1, timeout=0) is None
    queue.cancel(ids[1], running=True)
    assert queue.wait_cancels(1, timeout=0) is None
    queue.cancel(ids[0], running=True)
    queue.ack(second)
    assert queue.wait_cancels(1, timeout=0) == RequestedCancels([first.claim_id], 2)
    with pytest.raises(NotFound):
        ms.queue("none").wait_cancels(timeout=0)


def test_a_request_wakes_the_worker_that_waits(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"a")
    (message,) = queue.claim(1)
    answers: list[RequestedCancels | None] = []
    waiting = threading.Thread(target=lambda: answers.append(queue.wait_cancels(timeout=60)))
    waiting.start()
    Probe(ms).until(lambda: Probe(ms).waiting() > 0)
    queue.cancel(id, running=True)
    waiting.join(30)
    assert answers == [RequestedCancels([message.claim_id], 1)]


def test_requests_of_ended_attempts_go(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"%d" % n for n in range(300)])
    messages = queue.claim(300)
    for id, message in zip(ids, messages, strict=True):
        assert queue.cancel(id, running=True) == "requested"
        queue.ack(message)
    requested = queue.wait_cancels(timeout=0)
    assert requested == RequestedCancels([], 300)


@pytest.mark.parametrize("how", [*KINDS, {"dedup_by": "d"}])
def test_a_transaction_cancels_and_puts(ms: Millstream, how: dict[str, Any]) -> None:
    queue = ms.create_queue("q", **how)
    old = queue.put(b"old")
    later = queue.put(b"later", delay=60)
    with ms.transaction() as tx:
        cancelled = [tx.cancel(queue, old), tx.cancel("q", later), tx.cancel(queue, 99)]
        new = tx.put(queue, b"new")
    assert [answer.result for answer in cancelled] == [True, True, False]
    assert [queue.message(id).state for id in (old, later)] == ["cancelled", "cancelled"]
    assert values(queue.claim(9)) == [b"new"]
    assert new.result == 1
    with ms.transaction() as tx:
        requested = tx.cancel(queue, new.result, running=True)
    assert requested.result == "requested"


@pytest.mark.embedded
def test_an_interactive_transaction_cancels(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    old = queue.put(b"old")
    with ms.begin() as tx:
        tx.cancel(queue, old)
        tx.put(queue, b"new")
    assert values(queue.claim(9)) == [b"new"]


def test_a_transaction_cancels_a_redriven_message(ms: Millstream) -> None:
    queue = ms.create_queue("q", bucket_exponent=1)
    ids = queue.put_many([b"%d" % n for n in range(30)])
    first, *others = queue.claim(30)
    queue.fail(first)
    queue.ack(others)
    queue.redrive()
    with ms.transaction() as tx:
        answer = tx.cancel(queue, ids[0])
    assert answer.result is True
    assert queue.claim(1) == []


def test_the_notes_of_a_cancelled_message_go_with_it(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", done_retention=60)
    id = queue.put(b"x")
    (message,) = queue.claim(1)
    queue.note_progress(message, b"half")
    queue.cancel(id, running=True)
    queue.nack(message, error=b"stopped")
    fate = queue.message(id)
    assert (fate.state, fate.error) == ("cancelled", b"stopped")
    clock.advance(120)
    upkeep(ms)
    assert queue.message(id).state == "unknown"


def test_progress_is_shown_until_the_message_is_done(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", lease=10, backoff=0)
    id = queue.put(b"x")
    (message,) = queue.claim(1)
    queue.note_progress(message, b"0.5")
    assert queue.message(id).progress == b"0.5"
    queue.nack(message, error=b"trace")
    assert (queue.message(id).progress, queue.message(id).error) == (None, b"trace")
    (message,) = queue.claim(1)
    with ms.transaction() as tx:
        tx.note_progress(message, b"0.9")
    fate = queue.message(id)
    assert (fate.progress, fate.error) == (b"0.9", b"trace")
    queue.ack(message)
    assert queue.message(id).progress is None
    with pytest.raises(LeaseLost):
        queue.note_progress(message, b"1")
    wrong: Any = "text"
    with pytest.raises(InvalidInput):
        queue.note_progress(message, wrong)
    with pytest.raises(TooLarge):
        queue.note_progress(message, bytes(65_537))


@pytest.mark.embedded
def test_the_doctor_finds_nothing_after_cancels(reopen: Reopen, tmp_path: Path) -> None:
    with reopen() as ms:
        for number, how in enumerate(KINDS):
            queue = ms.create_queue(f"q{number}", **how)
            ids = [queue.put(b"%d" % n, headers={"g": f"g{n % 2}", "p": n % 3}) for n in range(8)]
            for message in queue.claim(5):
                queue.note_progress(message, b"p")
                queue.cancel(message, running=True)
                queue.nack(message, delay=0)
            queue.cancel(ids[-1], running=True)
        fold_all(ms)
    report = examine(tmp_path / "store.db")
    assert report.healthy, report.problems
