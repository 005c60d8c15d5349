"""Waiting for messages: a claim wakes when there is something to claim, and sleeps until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import Closed
from millstream.testing import Probe, SimulatedClock

from .conftest import counts, values

LONG_S = 120


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Millstream]:
    """A store on the machine's own clock: waiting takes real time."""
    with millstream.open(tmp_path / "real.db", durability="relaxed") as ms:
        yield ms


@pytest.fixture
def ask() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def let_wait(ms: Millstream) -> None:
    """Return when somebody waits."""
    probe = Probe(ms)
    probe.until(lambda: probe.waiting() > 0)


def test_a_claim_wakes_when_another_thread_puts(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", lease=10)
    waiting = ask(queue.claim, 5, wait=LONG_S)
    let_wait(real)
    real.queue("jobs").put(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


def test_a_claim_wakes_when_a_source_grows_that_did_not_exist(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", sources="ev*", filter="n = 1")
    waiting = ask(queue.claim, 5, wait=LONG_S)
    let_wait(real)
    real.log("events").append(b"no", headers={"n": 0})
    real.log("events").append(b"yes", headers={"n": 1})
    assert values(waiting.result(LONG_S / 2)) == [b"yes"]


def test_a_claim_wakes_when_another_handle_appends(
    real: Millstream, tmp_path: Path, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", sources="events")
    waiting = ask(queue.claim, 5, wait=LONG_S)
    let_wait(real)
    with millstream.open(tmp_path / "real.db") as other:
        other.log("events").append(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


def test_a_claim_wakes_when_a_delay_is_over(real: Millstream) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    queue.nack(queue.claim(), delay=0.05)
    (message,) = queue.claim(wait=LONG_S)
    assert message.attempt == 2


def test_a_claim_wakes_when_the_delay_of_the_queue_is_over(real: Millstream) -> None:
    queue = real.queue("jobs", delay=0.05)
    queue.put(b"a")
    assert values(queue.claim(wait=LONG_S)) == [b"a"]


def test_a_claim_wakes_when_the_lease_of_another_ends(real: Millstream) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    queue.claim(lease=0.05)
    (message,) = queue.claim(wait=LONG_S)
    assert message.attempt == 2


def test_a_claim_wakes_when_a_message_is_given_back(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    held = queue.claim()
    waiting = ask(queue.claim, wait=LONG_S)
    let_wait(real)
    queue.nack(held, delay=0)
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


def test_a_claim_wakes_when_messages_are_redriven(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    queue.fail(queue.claim())
    waiting = ask(queue.claim, wait=LONG_S)
    let_wait(real)
    queue.redrive()
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


def test_a_claim_wakes_when_the_queue_is_resumed(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", lease=60)
    queue.pause()
    waiting = ask(queue.claim, wait=LONG_S)
    let_wait(real)
    queue.put(b"a")
    queue.resume()
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


def test_a_claim_on_a_paused_queue_sleeps(
    real: Millstream, ask: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put_many([b"a", b"b"])
    queue.claim()
    queue.pause()
    store = Probe(real).store
    run, steps = store.run, []

    def counted(operation: Any) -> Any:
        steps.append(operation)
        return run(operation)

    monkeypatch.setattr(store, "run", counted)
    assert queue.claim(wait=0.2) == []
    assert len(steps) < 20


def test_a_claim_in_vain_ends_in_time_and_its_acknowledgement_counts(real: Millstream) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    assert queue.claim(wait=0.02, ack=queue.claim()) == []
    assert counts(queue) == {"done": 1}


def test_of_two_that_wait_each_message_wakes_one_for_good(
    real: Millstream, ask: Callable[..., Future[Any]]
) -> None:
    queue = real.queue("jobs", lease=60)
    waiting = [ask(queue.claim, 1, wait=LONG_S) for _ in range(2)]
    let_wait(real)
    queue.put(b"a")
    queue.put(b"b")
    found = [value for one in waiting for value in values(one.result(LONG_S / 2))]
    assert sorted(found) == [b"a", b"b"]


def test_a_claim_that_waits_is_told_that_the_store_was_closed(
    tmp_path: Path, ask: Callable[..., Future[Any]]
) -> None:
    ms = millstream.open(tmp_path / "closed.db")
    waiting = ask(ms.queue("jobs", lease=60).claim, wait=LONG_S)
    let_wait(ms)
    ms.close()
    with pytest.raises(Closed):
        waiting.result(LONG_S / 2)


def test_pop_waits_as_well(real: Millstream, ask: Callable[..., Future[Any]]) -> None:
    queue = real.queue("jobs", lease=60)
    waiting = ask(queue.pop, wait=LONG_S)
    let_wait(real)
    queue.put(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]
    assert counts(queue) == {"done": 1}


def test_a_claim_without_waiting_answers_at_once(ms: Millstream, clock: SimulatedClock) -> None:
    assert ms.queue("jobs", lease=60).claim(5) == []
    assert clock.seconds() == 0
