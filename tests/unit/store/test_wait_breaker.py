"""A wait of a thread that another thread breaks off: it ends at once, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream import Message, Millstream, aio
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


def run(breaker: WaitBreaker, wait: Callable[[], object]) -> object:
    """Wait in a block of the breaker; a claim answers, and other waits raise."""
    try:
        with breaker:
            return wait()
    except WaitBroken:
        return "broken"


ENDS = {"claim": [], "cancels": "broken", "log": "broken"}


@pytest.mark.parametrize("kind", ENDS)
def test_a_wait_is_broken_off(ms: Millstream, ask: Ask, kind: str) -> None:
    breaker = WaitBreaker()
    waiting = ask(run, breaker, waits_of(ms)[kind])
    Probe(ms).until(lambda: bool(ms.session.store.watch.wakes()))  # type: ignore[attr-defined]
    breaker.end()
    assert waiting.result(60) == ENDS[kind]


@pytest.mark.parametrize("kind", ENDS)
def test_a_wait_after_the_end_is_broken_off_too(ms: Millstream, kind: str) -> None:
    breaker = WaitBreaker()
    breaker.end()
    assert run(breaker, waits_of(ms)[kind]) == ENDS[kind]


def test_a_call_that_need_not_wait_goes_on_after_the_end(ms: Millstream) -> None:
    queue = ms.create_queue("jobs", lease=60)
    queue.put(b"a")
    breaker = WaitBreaker()
    breaker.end()
    with breaker:
        (message,) = queue.claim(1, wait=LONG_S)
    assert message.value == b"a"


def test_a_broken_claim_leaves_the_message_to_the_next(ms: Millstream, ask: Ask) -> None:
    queue = ms.create_queue("jobs", lease=60)
    breaker = WaitBreaker()
    first = ask(run, breaker, partial(queue.claim, 1, wait=LONG_S))
    Probe(ms).until(lambda: Probe(ms).claims_waiting("jobs") == 1)
    second = ask(queue.claim, 1, wait=LONG_S)
    Probe(ms).until(lambda: Probe(ms).claims_waiting("jobs") == 2)
    breaker.end()
    assert first.result(60) == []
    queue.put(b"a")
    (message,) = second.result(60)
    assert message.value == b"a"
    assert counts(queue) == {"in_flight": 1}


def test_an_inner_block_has_a_breaker_of_its_own(ms: Millstream) -> None:
    outer, inner = WaitBreaker(), WaitBreaker()
    inner.end()
    waits = waits_of(ms)
    with outer:
        assert run(inner, waits["claim"]) == []
        outer.end()
        with pytest.raises(WaitBroken):
            waits["cancels"]()


def test_the_claim_of_a_task_is_broken_off_by_a_thread(tmp_path: Path) -> None:
    async def check() -> None:
        breaker = WaitBreaker()
        async with await aio.open(tmp_path / "tasks.db") as ms:
            queue = await ms.create_queue("jobs", lease=60)

            async def claim() -> list[Message]:
                with breaker:
                    return await queue.claim(1, wait=LONG_S)

            waiting = asyncio.create_task(claim())
            while breaker.wake is None:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(breaker.end)
            assert await asyncio.wait_for(waiting, 60) == []
            assert await claim() == []

    asyncio.run(check())
