"""A wait of a thread that another thread breaks off: it ends at once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from millstream import Millstream
from millstream.store.wait_breaker import WaitBreaker, WaitBroken
from millstream.testing import Probe, memory_store
from tests.unit.queue.conftest import counts

LONG_S = 3600
"""Longer than any test: a wait that ends was broken off."""

Ask = Callable[..., Future[Any]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with memory_store() as ms:
        yield ms


def waits_of(ms: Millstream) -> dict[str, Callable[[], object]]:
    queue, log = ms.create_queue("jobs", lease=60), ms.log("events")
    log.append(b"first")
    return {
        "claim": partial(queue.claim, 1, wait=LONG_S),
        "cancels": partial(queue.wait_cancels, 0, timeout=LONG_S),
        "log": partial(log.wait, 1, timeout=LONG_S),
    }


@pytest.mark.parametrize("kind", ["claim", "cancels", "log"])
def test_a_wait_is_broken_off(ms: Millstream, ask: Ask, kind: str) -> None:
    breaker = WaitBreaker()
    waiting = ask(breaker.run, waits_of(ms)[kind])
    Probe(ms).until(lambda: bool(ms.session.store.watch.wakes()))  # type: ignore[attr-defined]
    breaker.end()
    with pytest.raises(WaitBroken):
        waiting.result(60)


@pytest.mark.parametrize("kind", ["claim", "cancels", "log"])
def test_a_wait_after_the_end_is_broken_off_too(ms: Millstream, kind: str) -> None:
    breaker = WaitBreaker()
    breaker.end()
    with pytest.raises(WaitBroken):
        breaker.run(waits_of(ms)[kind])


def test_a_call_that_need_not_wait_goes_on_after_the_end(ms: Millstream) -> None:
    queue = ms.create_queue("jobs", lease=60)
    queue.put(b"a")
    breaker = WaitBreaker()
    breaker.end()
    (message,) = breaker.run(partial(queue.claim, 1, wait=LONG_S))
    assert message.value == b"a"


def test_a_broken_claim_leaves_the_message_to_the_next(ms: Millstream, ask: Ask) -> None:
    queue = ms.create_queue("jobs", lease=60)
    breaker = WaitBreaker()
    first = ask(breaker.run, partial(queue.claim, 1, wait=LONG_S))
    Probe(ms).until(lambda: Probe(ms).claims_waiting("jobs") == 1)
    second = ask(queue.claim, 1, wait=LONG_S)
    Probe(ms).until(lambda: Probe(ms).claims_waiting("jobs") == 2)
    breaker.end()
    with pytest.raises(WaitBroken):
        first.result(60)
    queue.put(b"a")
    (message,) = second.result(60)
    assert message.value == b"a"
    assert counts(queue) == {"in_flight": 1}


def test_an_inner_call_has_a_breaker_of_its_own(ms: Millstream) -> None:
    outer, inner = WaitBreaker(), WaitBreaker()
    inner.end()
    waits = waits_of(ms)

    def nested() -> str:
        with pytest.raises(WaitBroken):
            inner.run(waits["claim"])
        outer.end()
        with pytest.raises(WaitBroken):
            waits["cancels"]()
        return "both"

    assert outer.run(nested) == "both"
