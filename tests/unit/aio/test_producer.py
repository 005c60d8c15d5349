"""Producers for coroutines, over a file and over a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream import aio
from millstream.errors import Closed, InvalidInput, MillstreamError, Overloaded, TooLarge


async def test_records_are_stored_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        async with log.producer() as producer:
            handles = [await producer.append(b"%d" % number) for number in range(3_000)]
            assert await handles[-1].offset() == 2_999
        values = [record.value async for record in log.read()]
        assert values == [b"%d" % number for number in range(3_000)]
        assert [await handle.offset() for handle in handles] == [*range(3_000)]


async def test_coroutines_share_a_producer_and_each_keeps_its_order(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        async with log.producer(in_flight=20) as producer:

            async def work(name: int) -> None:
                for number in range(100):
                    await producer.append(b"%d:%d" % (name, number))

            await asyncio.gather(*map(work, range(5)))
        values = [record.value or b"" async for record in log.read()]
        assert len(values) == 500
        for name in range(5):
            mine = [value for value in values if value.startswith(b"%d:" % name)]
            assert mine == [b"%d:%d" % (name, number) for number in range(100)]


async def test_a_loop_of_appends_lets_other_coroutines_run(tmp_path: Path) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with await aio.open(tmp_path / "a.db") as ms:
        counting = asyncio.create_task(count_turns())
        async with ms.log("orders").producer(in_flight=1_000_000, linger=60) as producer:
            for _ in range(10_000):
                await producer.append(b"")
            assert turns >= 9
        counting.cancel()


async def test_a_coroutine_function_is_no_callback(tmp_path: Path) -> None:
    async def callback(handle: object) -> None:
        """Nobody would await it."""

    async with await aio.open(tmp_path / "a.db") as ms, ms.log("orders").producer() as producer:
        handle = await producer.append(b"a", callback=callback)
        with pytest.raises(InvalidInput, match="a callback is a plain function"):
            await handle.offset()


async def test_queues_and_partitions_have_producers(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue, log = await ms.create_queue("jobs", priority_by="p"), ms.log("spread", partitions=3)
        async with queue.producer() as putting, log.producer() as producer:
            first = await putting.put("first")
            await putting.put("second", priority=3)
            place = await (await producer.append("x", key="k")).offset()
            assert place == (log.partition_for("k"), 0) or place.offset == 0
            assert await first.id() == 0
        assert [message.text for message in await queue.claim(9)] == ["second", "first"]


async def test_bounds_and_refusals_are_those_of_threads(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        async with log.producer(linger=60, in_flight=2, wait=False) as producer:
            large = await producer.append(b"x" * (16 * 1024 * 1024 + 1))
            await producer.append(b"a")
            await producer.append(b"b")
            with pytest.raises(Overloaded):
                await producer.append(b"c")
            with pytest.raises(TooLarge):
                await large.offset()
            assert large.done
        with pytest.raises(Closed):
            await producer.append(b"d")
        assert await log.len() == 2


async def test_a_cancelled_caller_harms_no_message(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        async with log.producer(linger=60, in_flight=1) as producer:
            handle = await producer.append(b"a")
            waiting = [
                asyncio.create_task(handle.offset()),
                asyncio.create_task(handle.offset()),
                asyncio.create_task(producer.append(b"cancelled")),
            ]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await producer.append(b"b")
        values = [record.value async for record in log.read()]
        assert [value for value in values if value != b"cancelled"] == [b"a", b"b"]


async def test_a_timeout_leaves_the_record_on_its_way(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms, ms.log("orders").producer() as producer:
        handle = await producer.append(b"a")
        with pytest.raises(TimeoutError):
            await handle.offset(timeout=0)
        assert await handle.offset(timeout=30) == 0


@pytest.mark.embedded
def test_the_end_of_the_event_loop_settles_all_handles(tmp_path: Path) -> None:
    async def leave() -> aio.AppendHandle:
        ms = await aio.open(tmp_path / "a.db")
        return await ms.log("orders").producer(linger=60).append(b"a")

    handle = asyncio.run(leave())
    assert handle.done
    with pytest.raises(MillstreamError):
        asyncio.run(handle.offset())
