"""A consumer of a queue as coroutines hold it; the tests of threads cover what both have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import aio
from millstream.errors import LeaseLost

LONG_S = 60


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[aio.Queue]:
    async with await aio.open(tmp_path / "a.db", durability="relaxed") as ms:
        yield await ms.queue("jobs", max_attempts=3, backoff=0, lease=3600)


async def counts(queue: aio.Queue) -> tuple[int, int, int, int]:
    """Return how many messages wait, are in flight, done and failed."""
    info = await queue.info()
    return info.available + info.unrouted + info.delayed, info.in_flight, info.done, info.failed


async def test_every_message_comes_once_and_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:
        await jobs.put_many(range(500))
        async with jobs.consumer(prefetch=64, timeout=0) as consumer:
            numbers = []
            async for message in consumer:
                numbers.append(message.json())
                await consumer.ack(message)
        assert numbers == list(range(500))
        assert await counts(jobs) == (0, 0, 500, 0)


async def test_a_later_loop_gets_the_messages_that_came_since(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs, jobs.consumer(timeout=0, auto_ack=True) as consumer:
        assert [message.text async for message in consumer] == []
        await jobs.put("a")
        assert [message.text async for message in consumer] == ["a"]


async def test_a_loop_waits_for_messages_until_a_stop(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:
        texts: asyncio.Queue[str] = asyncio.Queue()

        async def consume(consumer: aio.QueueConsumer) -> None:
            async with consumer:
                async for message in consumer:
                    await texts.put(message.text)

        consumer = jobs.consumer(auto_ack=True)
        task = asyncio.create_task(consume(consumer))
        for text in ("a", "b"):
            await jobs.put(text)
            assert await texts.get() == text
        consumer.stop()
        await task
        # The loop did not ask for another message after "b", or it was told to stop before.
        waiting, in_flight, done, failed = await counts(jobs)
        assert (waiting + done, in_flight, failed) == (2, 0, 0)


async def test_a_cancelled_loop_gives_everything_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:
        await jobs.put_many(range(10))
        has_begun = asyncio.Event()

        async def consume() -> None:
            async with jobs.consumer(prefetch=8, linger=LONG_S) as consumer:
                async for message in consumer:
                    await consumer.ack(message)
                    if message.json() == 2:
                        has_begun.set()
                        await asyncio.Event().wait()  # until it is cancelled

        task = asyncio.create_task(consume())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await counts(jobs) == (7, 0, 3, 0)


async def test_a_loop_that_is_cancelled_while_it_waits_holds_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:

        async def consume() -> None:
            async with jobs.consumer() as consumer:
                async for message in consumer:
                    await consumer.ack(message)

        for number in range(5):
            task = asyncio.create_task(consume())
            await jobs.put(number)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # A server hears that a claim was cancelled after it gave the messages: they come back soon,
        # long before their lease ends.
        while (await counts(jobs))[2] < 5:
            async with jobs.consumer(timeout=0.02, auto_ack=True) as consumer:
                async for _ in consumer:
                    pass
        assert await counts(jobs) == (0, 0, 5, 0)


async def test_the_keeper_works_while_the_loop_sleeps(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:
        await jobs.put_many(["a", "b"])
        async with jobs.consumer(linger=0.001, lease=3) as consumer:
            async for message in consumer:
                untils = {one.until for one in await jobs.peek(2, state="in_flight")}
                while len(untils) < 4:
                    await asyncio.sleep(0.02)
                    untils |= {one.until for one in await jobs.peek(2, state="in_flight")}
                await consumer.ack(message)
                while (await jobs.info()).done == 0:
                    await asyncio.sleep(0.01)
                break
        assert await counts(jobs) == (1, 0, 1, 0)


async def test_a_lost_lease_is_reported_by_a_flush(tmp_path: Path) -> None:
    async with opened(tmp_path) as jobs:
        await jobs.put_many(["stolen", "kept"])
        async with jobs.consumer(linger=LONG_S, timeout=0) as consumer:
            async for message in consumer:
                if message.text == "stolen":
                    await jobs.fail(message)
                await consumer.ack(message)
            with pytest.raises(LeaseLost):
                await consumer.flush()
            assert consumer.lost == 1
        assert await counts(jobs) == (0, 0, 1, 1)
