"""Many threads that wait for one queue: a change costs one look, and reaches the threads it is for."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import Closed, NotFound
from millstream.testing import Probe
from millstream.testing.probe import lines_of
from millstream.threads.queue import Queue
from tests.interrupting import interrupted

from .conftest import counts, values
from .lining import standing, until_standing

FOR_AN_HOUR_S = 3_600
LONG_S = 120
MANY = 40
SEEDS = range(12)

Ask = Callable[..., Future[Any]]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Millstream]:
    """A store on the machine's own clock: waiting takes real time."""
    with millstream.open(tmp_path / "real.db", durability="relaxed") as ms:
        yield ms


@pytest.fixture
def ask() -> Iterator[Ask]:
    with ThreadPoolExecutor(MANY) as pool:
        yield pool.submit


def waiting(ms: Millstream, ask: Ask, queue: Queue, count: int = MANY) -> list[Future[Any]]:
    """Claims of one message each that wait, in this order."""
    found = []
    for number in range(count):
        found.append(ask(queue.claim, 1, wait=LONG_S))
        until_standing(ms, number + 1)
    return found


def operations(ms: Millstream) -> int:
    found: int = ms.stats()["operations"]
    return found


def test_a_message_costs_one_look_and_goes_to_the_first_in_line(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue)
    before = operations(real)
    queue.put(b"a")
    assert values(claims[0].result(LONG_S / 2)) == [b"a"]
    until_standing(real, MANY - 1)
    assert operations(real) - before <= 5
    assert not any(claim.done() for claim in claims[1:])
    queue.put_many([b"b"] * (MANY - 1))
    assert all(claim.result(LONG_S / 2) for claim in claims)


def test_a_change_in_vain_wakes_the_first_alone(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", sources="ev*", filter="n = 1")
    claims = waiting(real, ask, queue)
    before = operations(real)
    real.log("events").append(b"no", headers={"n": 0})
    real.log("events").append_many([b"yes"] * MANY, headers=[{"n": 1}] * MANY)
    assert sorted(values([m for claim in claims for m in claim.result(LONG_S / 2)])) == (
        [b"yes"] * MANY
    )
    assert operations(real) - before <= 2 * MANY


def test_a_burst_reaches_as_many_as_it_has_messages_for(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue)
    queue.put_many([b"x"] * (MANY - 5))
    done = as_completed(claims, LONG_S / 2)
    assert all(next(done).result() for _ in range(MANY - 5))
    until_standing(real, 5)
    assert sum(claim.done() for claim in claims) == MANY - 5
    assert counts(queue) == {"in_flight": MANY - 5}
    queue.put_many([b"x"] * 5)
    wait_for(claims, LONG_S / 2)
    assert counts(queue) == {"in_flight": MANY}


@pytest.mark.parametrize("settings", [{"priority_by": "p"}, {"group_by": "g"}, {"delay": 0.01}])
def test_a_burst_to_a_queue_with_an_index_reaches_all(
    real: Millstream, ask: Ask, settings: dict[str, Any]
) -> None:
    queue = real.queue("jobs", sources="events", lease=60, **settings)
    claims = waiting(real, ask, queue, 10)
    headers: list[Any] = [{"p": number % 3, "g": str(number)} for number in range(10)]
    real.log("events").append_many([b"x"] * 10, headers=headers)
    assert [len(claim.result(LONG_S / 2)) for claim in claims] == [1] * 10


def test_a_cap_lets_only_as_many_look_as_may_have_something(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60, max_in_flight=1)
    claims = waiting(real, ask, queue, 10)
    queue.put_many([b"x"] * 10)
    (held,) = claims[0].result(LONG_S / 2)
    until_standing(real, 9)
    before = operations(real)
    queue.ack([held])
    assert len(claims[1].result(LONG_S / 2)) == 1
    until_standing(real, 8)
    assert operations(real) - before <= 5
    queue.alter(max_in_flight=0)
    assert [len(claim.result(LONG_S / 2)) for claim in claims] == [1] * 10


def test_the_first_of_a_line_is_woken_when_leases_end(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put_many([b"a", b"b"])
    first, second = queue.claim(2)
    queue.renew(first, lease=0.3)
    queue.renew(second, lease=0.6)
    claims = [ask(queue.claim, 1, wait=LONG_S) for _ in range(5)]
    done = as_completed(claims, LONG_S / 2)
    again = [message for _ in range(2) for message in next(done).result()]
    queue.put_many([b"c"] * 5)
    assert all(claim.result(LONG_S / 2) for claim in claims)
    assert all(message.attempt == 2 or message.value == b"c" for message in again)


def test_what_another_handle_puts_wakes_one_of_each_line(
    real: Millstream, tmp_path: Path, ask: Ask
) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue, 10)
    with millstream.open(tmp_path / "real.db") as other:
        far = [ask(other.queue("jobs", lease=60).claim, 1, wait=LONG_S) for _ in range(10)]
        until_standing(other, 10)
        other.queue("jobs").put_many([b"x"] * 12)
        queue.put_many([b"x"] * 8)
        assert [len(claim.result(LONG_S / 2)) for claim in [*claims, *far]] == [1] * 20


def test_everyone_in_line_is_told_that_the_queue_is_gone(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue)
    queue.delete()
    for claim in claims:
        with pytest.raises(NotFound):
            claim.result(LONG_S / 2)
    assert standing(real) == 0


def test_everyone_in_line_is_told_that_the_store_was_closed(tmp_path: Path, ask: Ask) -> None:
    ms = millstream.open(tmp_path / "closed.db")
    claims = waiting(ms, ask, ms.queue("jobs", lease=60))
    ms.close()
    for claim in claims:
        with pytest.raises(Closed):
            claim.result(LONG_S / 2)


def test_a_paused_queue_keeps_its_line_until_it_is_resumed(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue, 5)
    queue.pause()
    queue.put_many([b"x"] * 5)
    until_standing(real, 5)
    queue.resume()
    assert [len(claim.result(LONG_S / 2)) for claim in claims] == [1] * 5


def test_a_queue_that_takes_from_another_log_wakes_its_line(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", sources="old", lease=60)
    claims = waiting(real, ask, queue, 5)
    queue.alter(sources=("new", "more*"))
    real.log("old").append(b"no")
    real.log("new").append_many([b"yes"] * 2)
    real.log("more-1").append_many([b"yes"] * 3)
    found = [message.value for claim in claims for message in claim.result(LONG_S / 2)]
    assert found == [b"yes"] * 5


@pytest.mark.embedded
def test_a_thread_that_is_interrupted_passes_its_place_on(real: Millstream, ask: Ask) -> None:
    """The main thread is the first in line, and Ctrl-C ends its wait."""
    queue = real.queue("jobs", lease=60)

    claims: list[Future[Any]] = []

    def others_wait(_: threading.Event) -> None:
        until_standing(real, 1)
        for number in range(3):
            claims.append(ask(queue.claim, 1, wait=LONG_S))
            until_standing(real, number + 2)

    with interrupted(others_wait):
        queue.claim(1, wait=LONG_S)
    until_standing(real, 3)
    queue.put_many([b"x"] * 3)
    assert [len(claim.result(LONG_S / 2)) for claim in claims] == [1] * 3


def test_a_claim_of_no_messages_waits_for_none(real: Millstream) -> None:
    queue = real.queue("jobs", lease=60)
    queue.put(b"a")
    assert queue.claim(0, wait=FOR_AN_HOUR_S) == []
    assert counts(queue) == {"available": 1}


def test_a_wait_of_ages_is_a_long_wait(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claim = ask(queue.claim, 1, wait=10**15)
    until_standing(real, 1)
    queue.put(b"a")
    assert values(claim.result(LONG_S / 2)) == [b"a"]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_message_lies_there_while_threads_come_and_go(
    real: Millstream, ask: Ask, seed: int
) -> None:
    """Waits end at the moment of a put, again and again; each message is claimed all the same."""
    chance = random.Random(seed)
    queue, total = real.queue("jobs", lease=60), 60
    got: list[bytes] = []
    over = threading.Event()

    def consume(chance: random.Random) -> None:
        while not over.is_set():
            held = queue.claim(chance.randint(1, 2), wait=chance.choice([0.001, 0.003, 0.01, 5]))
            got.extend(values(held))
            if len(got) >= total:
                over.set()
                queue.put_many([b"end"] * 20)  # who waits long is let go

    consumers = [ask(consume, random.Random(seed * 100 + number)) for number in range(6)]
    pause = threading.Event()
    for number in range(total):
        queue.put(str(number).encode())
        pause.wait(chance.choice([0, 0, 0.001, 0.004]))
    assert over.wait(LONG_S), f"{len(got)} of {total}: seed {seed}, {counts(queue)}"
    for one in consumers:
        one.result(LONG_S)
    assert sorted(value for value in got if value != b"end") == sorted(
        str(number).encode() for number in range(total)
    )
    assert standing(real) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no forks there")
def test_a_forked_child_stands_in_a_line_of_its_own(real: Millstream, ask: Ask) -> None:
    import multiprocessing

    queue = real.queue("jobs", lease=60)
    claim = ask(queue.claim, 1, wait=LONG_S)
    until_standing(real, 1)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=partial(_claim_in_child, real, theirs))
    child.start()
    queue.put_many([b"a", b"b"])
    assert ours.poll(LONG_S)
    found = [ours.recv(), *values(claim.result(LONG_S / 2))]
    child.join(LONG_S)
    assert sorted(found) == [b"a", b"b"]


def _claim_in_child(ms: Millstream, answers: Any) -> None:
    (message,) = ms.queue("jobs").claim(1, wait=LONG_S)
    answers.send(message.value)


def test_a_line_is_forgotten_with_its_last_waiter(real: Millstream, ask: Ask) -> None:
    queue = real.queue("jobs", lease=60)
    claims = waiting(real, ask, queue, 3)
    (lines,) = lines_of(Probe(real).store)
    queue.put_many([b"x"] * 3)
    assert all(claim.result(LONG_S / 2) for claim in claims)
    assert not lines._lines
    assert not lines._watched
