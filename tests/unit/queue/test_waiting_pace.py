"""A consumer that keeps up waits for each message: it makes no claim in vain, and misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from millstream import Millstream
from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.testing import memory_store
from millstream.threads.queue import Queue

from .conftest import values
from .lining import until_standing

LONG_S = 120

Ask = Callable[..., Future[Any]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


class HastyClock(SystemClock):
    """A clock that can go on by a tenth of a second with each look at it."""

    hurries = False
    ahead_s = 0.0

    def seconds(self) -> float:
        self.ahead_s += 0.1 * self.hurries
        return super().seconds() + self.ahead_s


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
def here(clock: HastyClock) -> Iterator[Millstream]:
    with memory_store(clock=clock) as found:
        yield found


@pytest.fixture
def kept_up(here: Millstream, ask: Ask) -> Queue:
    """A queue whose consumer got its last message by the commit that brought it."""
    queue = here.queue("jobs", sources="events", start="earliest", lease=60)
    waiting = ask(queue.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    here.log("events").append(b"first")
    queue.ack(waiting.result(LONG_S / 2))
    return queue


def operations(ms: Millstream) -> int:
    found: int = ms.stats()["operations"]
    return found


def test_it_waits_without_a_claim_in_vain(here: Millstream, ask: Ask, kept_up: Queue) -> None:
    before = operations(here)
    waiting = ask(kept_up.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    assert operations(here) == before

    here.log("events").append(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]
    assert operations(here) == before + 2, "an append, and the claim that it took along"


@pytest.mark.parametrize("wait_s", [LONG_S, 0.001])
def test_what_came_before_it_asked_is_claimed_at_once(
    here: Millstream, kept_up: Queue, wait_s: float
) -> None:
    here.log("events").append_many([b"a", b"b"])
    assert values(kept_up.claim(1, wait=wait_s)) == [b"a"]
    before = operations(here)
    assert values(kept_up.claim(1, wait=wait_s)) == [b"b"]
    assert operations(here) == before + 1, "the second claim is made without a glance before"


def test_what_is_there_when_its_time_is_up_is_claimed(
    here: Millstream, clock: HastyClock, kept_up: Queue
) -> None:
    here.log("events").append(b"a")
    clock.hurries = True
    assert values(kept_up.claim(1, wait=0.01)) == [b"a"]


def test_a_claim_that_asks_for_something_wrong_is_refused_at_once(kept_up: Queue) -> None:
    with pytest.raises(InvalidInput, match="consumer id"):
        kept_up.claim(1, consumer="x" * 10_000, wait=LONG_S)


def test_it_hears_of_logs_that_the_queue_takes_from_only_now(
    here: Millstream, ask: Ask, kept_up: Queue
) -> None:
    here.create_queue("jobs", sources=["events", "others"], start="earliest", lease=60)
    waiting = ask(kept_up.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    here.log("others").append(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]
