"""Forks and owners for coroutines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream import aio
from millstream.errors import ForkDetected, InvalidInput, NotOwner


async def test_a_fork_goes_its_own_way_and_comes_back(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        await log.append_many([b"0", b"1"])
        fork = await log.fork("trial")
        assert isinstance(fork, aio.Log)
        assert await fork.parent() == "orders"
        await asyncio.gather(*(fork.append(b"%d" % n) for n in range(5)))
        assert (await fork.merge()).adopted == 5
        assert await log.end_offset() == 7
        await log.append(b"more")
        await fork.append(b"other")
        with pytest.raises(ForkDetected):
            await fork.merge()
        assert (await fork.merge(on_fork="rebase")).end == 9
        with pytest.raises(InvalidInput):
            await log.merge()


async def test_who_owns_a_log(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")
        await log.append(b"0")
        assert (await log.owner()).here
        assert (await log.hand_over("elsewhere")).epoch == 1
        with pytest.raises(NotOwner):
            await log.append(b"1")
        assert (await log.take_over()).epoch == 2
        assert await log.append(b"1") == 1
