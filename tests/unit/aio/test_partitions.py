"""Logs with partitions, for coroutines: what threads have, awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream import aio
from millstream.errors import Partitioned

KEYS = [f"key-{number % 20}" for number in range(200)]


async def test_coroutines_spread_read_and_acknowledge(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "store.db") as ms:
        orders = ms.log("orders", partitions=4)
        places = await asyncio.gather(
            *(orders.append({"n": number}, key=KEYS[number]) for number in range(100))
        )
        places += await orders.append_many(
            [{"n": number} for number in range(100, 200)], keys=KEYS[100:]
        )
        assert [one.partition for one in places] == [orders.partition_for(key) for key in KEYS]
        assert await orders.len() == 200
        cursor = await orders.cursor("reader")
        found: dict[bytes | None, list[int]] = {}
        while taken := await cursor.take(30):
            for record in taken:
                found.setdefault(record.key, []).append(record.json()["n"])
            async with ms.transaction() as tx:
                tx.ack(cursor, taken)
        assert found == {f"key-{one}".encode(): list(range(one, 200, 20)) for one in range(20)}
        assert await cursor.is_empty()
        assert [one async for one in orders.tail(timeout=0)] == []
        with pytest.raises(Partitioned):
            await ms.log("orders").append(b"x")


async def test_a_coroutine_waits_for_any_partition(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "store.db") as ms:
        orders = ms.log("orders", partitions=4)
        cursor = await orders.cursor("reader")
        waiting = asyncio.ensure_future(cursor.take(1, wait=30))
        await orders.append(b"x", partition=3)
        (record,) = await waiting
        assert (record.partition, record.value) == (3, b"x")
        tail = orders.tail({3: 1}, timeout=30)
        heard = asyncio.ensure_future(anext(tail))
        await orders.append(b"y", partition=1)
        assert (await heard).partition == 1
