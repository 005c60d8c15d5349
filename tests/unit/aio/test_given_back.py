"""Claims of coroutines that are cancelled: what they took anyway can be claimed again at once.

Nothing here waits for a lease: it lasts for an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream import aio
from millstream.aio.queue import Queue
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import open_store
from millstream.store.commit.gather import KEPT
from millstream.testing import Faults, MemoryEngine, Pause, Probe

LONG_S = 60
HOUR_S = 3600


def held_up() -> tuple[aio.Millstream, Faults]:
    """A store in memory whose commits can be held up, and without a keeper that writes."""
    faults = Faults()
    store = open_store(MemoryEngine(faults=faults))
    Probe(store).pause_keeper()
    return aio.Millstream(AsyncEmbeddedSession(store)), faults


async def standing(ms: aio.Millstream, queue: Queue, count: int = 1) -> asyncio.Task[list[object]]:
    """A claim that waits in line."""
    claim: asyncio.Task[list[object]] = asyncio.create_task(queue.claim(count, wait=LONG_S))
    probe = Probe(ms)
    await probe.until_async(lambda: bool(probe.claims_waiting("jobs") and probe.waiting()))
    return claim


async def cancelled(claim: asyncio.Task[list[object]]) -> None:
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim


async def claimed_again(queue: Queue, count: int = 1) -> None:
    """Every message is there for another claim, which waits for no lease."""
    found = await queue.claim(count, wait=LONG_S)
    assert len(found) == count
    assert (await queue.info()).in_flight == count


async def test_a_claim_that_a_thread_makes() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        await queue.put(b"a")
        with Pause() as pause:
            faults.on("sent", pause)
            claim = asyncio.create_task(queue.claim(wait=LONG_S))
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(claim)
        await claimed_again(queue)


async def test_a_look_that_began_before_the_message_came() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        with Pause() as pause:
            faults.on("begin", pause)
            claim = asyncio.create_task(queue.claim(wait=LONG_S))
            await asyncio.to_thread(pause.wait_until_reached)
            put = asyncio.create_task(queue.put(b"a"))
            await cancelled(claim)
        await put
        await claimed_again(queue)


async def test_a_store_gives_back_before_it_closes() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    store = open_store(engine)
    Probe(store).pause_keeper()
    ms = aio.Millstream(AsyncEmbeddedSession(store))
    queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
    await queue.put(b"a")
    with Pause() as pause:
        faults.on("sent", pause)
        claim = asyncio.create_task(queue.claim(wait=LONG_S))
        await asyncio.to_thread(pause.wait_until_reached)
        await cancelled(claim)
        closing = asyncio.create_task(ms.close())
        for _ in range(3):
            await asyncio.sleep(0)
    await closing
    again = open_store(engine.reopen())
    async with aio.Millstream(AsyncEmbeddedSession(again)) as ms:
        assert (await (await ms.queue("jobs")).info()).in_flight == 0


async def keeping_up(queue: Queue) -> None:
    """Have claims on a queue be made by the loop's own commits: its consumers keep up."""
    for _ in range(2):
        await queue.put(b"before")
        await queue.ack(await queue.claim())
    await queue.claim()


async def test_a_claim_that_the_commit_thread_makes() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        await keeping_up(queue)
        await queue.put_many([b"a", b"b"])
        with Pause() as pause:
            faults.on("sent", pause)
            claim = asyncio.create_task(queue.claim(2, wait=LONG_S))
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(claim)
        await claimed_again(queue, 2)


async def test_a_claim_made_by_the_commit_that_brings_its_message() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        claim = await standing(ms, queue)
        with Pause() as pause:
            faults.on("sent", pause)
            put = asyncio.create_task(queue.put(b"a"))
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(claim)
        await put
        await claimed_again(queue)


async def elsewhere(ms: aio.Millstream, value: bytes) -> None:
    """Append by another session of the store: the loop has to look."""
    session = ms.session
    assert isinstance(session, AsyncEmbeddedSession)
    other = aio.Millstream(AsyncEmbeddedSession(session.store))
    await other.log("queue:jobs").append(value)


async def test_a_look_of_a_claim_that_waits() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        claim = await standing(ms, queue)
        with Pause() as pause:
            faults.on("sent", pause, nth=2)  # of the append, then of the look
            await elsewhere(ms, b"a")
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(claim)
        await claimed_again(queue)


async def test_a_message_that_was_handed_over_but_not_yet_taken() -> None:
    """The loop has the answer ready, and the task that waits for it is cancelled before it runs."""
    loop, claims = asyncio.get_running_loop(), list[asyncio.Task[list[object]]]()

    def cancel_soon(step: str) -> None:
        """Before what the commit answers can run, and after it is answered."""
        if step == "sent":
            for claim in claims:
                loop.call_soon(claim.cancel)

    store = open_store(MemoryEngine(faults=cancel_soon))
    Probe(store).pause_keeper()
    async with aio.Millstream(AsyncEmbeddedSession(store)) as ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        for _ in range(KEPT):
            await ms.log("warm").append(b"x")
        claim = await standing(ms, queue)
        claims.append(claim)
        await queue.put(b"a")
        claims.clear()
        with pytest.raises(asyncio.CancelledError):
            await claim
        await claimed_again(queue)


async def test_the_next_in_line_gets_it() -> None:
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S, max_attempts=1)
        claim = await standing(ms, queue)
        second = asyncio.create_task(queue.claim(wait=LONG_S))
        probe = Probe(ms)
        await probe.until_async(lambda: probe.claims_waiting("jobs") == 2)
        with Pause() as pause:
            faults.on("sent", pause)
            put = asyncio.create_task(queue.put(b"a"))
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(claim)
        await put
        assert [message.value for message in await second] == [b"a"]


Take = Callable[[Queue], Awaitable[object]]


async def test_what_is_popped_for_a_caller_that_is_gone_is_done() -> None:
    """A pop gives each message at most once: it is not known that nobody has seen it."""
    ms, faults = held_up()
    async with ms:
        queue = await ms.create_queue("jobs", lease=HOUR_S)
        await queue.put(b"a")
        with Pause() as pause:
            faults.on("sent", pause)
            pop = asyncio.create_task(queue.pop(wait=LONG_S))
            await asyncio.to_thread(pause.wait_until_reached)
            await cancelled(pop)  # type: ignore[arg-type]

        async def is_done() -> bool:
            return (await queue.info()).done == 1

        await Probe(ms).until_async(is_done)
        assert await queue.claim() == []
