"""Interactive transactions of coroutines: whose turn it is, and what a cancelled task leaves."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

import pytest

from millstream import aio
from millstream.errors import InvalidInput, TransactionExpired

pytestmark = pytest.mark.embedded

PATIENCE_S = 60.0
SHORT_S = 0.02

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


async def prepared(path: Path) -> aio.Millstream:
    ms = await aio.open(path)
    await ms.create_queue("jobs")
    async with ms.begin() as tx:
        await tx.sql("CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL)")
        await tx.sql("INSERT INTO stock VALUES ('apple', 3)")
    return ms


async def apples(ms: aio.Millstream) -> int:
    count: int = (await ms.sql("SELECT n FROM stock")).scalar()
    return count


async def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms:
        async with ms.begin() as tx:
            row = (await tx.sql("SELECT n FROM stock WHERE item = ?", ["apple"])).one()
            await tx.sql("UPDATE stock SET n = ?", [row["n"] - 1])
            message = tx.put("jobs", {"left": row["n"] - 1})
        assert message.result is not None
        assert await apples(ms) == 2


async def test_a_task_that_would_wait_for_itself_is_refused(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms:
        async with ms.begin() as tx:
            await tx.sql("UPDATE stock SET n = 1")
            with pytest.raises(InvalidInput, match=r"`ms.begin\(\)` around it"):
                await ms.log("x").append(b"1")
            with pytest.raises(InvalidInput, match=r"`ms.begin\(\)` around it"):
                await ms.close()
            with pytest.raises(InvalidInput, match=r"`ms.begin\(\)` around it"):
                async with ms.begin():
                    pass
            assert await apples(ms) == 3
        assert await apples(ms) == 1
        await ms.log("x").append(b"1")


async def test_other_tasks_wait_for_their_turn(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms:

        async def take() -> None:
            async with ms.begin() as tx:
                left = (await tx.sql("SELECT n FROM stock")).scalar()
                await asyncio.sleep(0)
                await tx.sql("UPDATE stock SET n = ?", [left + 1])
                tx.append("taken", left)

        await asyncio.gather(*(take() for _ in range(10)), *map(ms.log("x").append, [b"1"] * 10))
        assert await apples(ms) == 13
        taken = [record.json() async for record in ms.log("taken").read()]
        assert taken == list(range(3, 13))
        assert len([record async for record in ms.log("x").read()]) == 10


async def test_a_task_that_is_cancelled_in_its_block_rolls_back(tmp_path: Path) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, facts: reported.append(facts))
    async with await prepared(tmp_path / "a.db") as ms:
        begun = asyncio.Event()

        async def work(statement: str) -> None:
            async with ms.begin(timeout=PATIENCE_S) as tx:
                await tx.sql("DELETE FROM stock")
                begun.set()
                await tx.sql(statement)
                await asyncio.Event().wait()  # until it is cancelled

        for statement in ("SELECT 1", ENDLESS):
            begun.clear()
            task = asyncio.create_task(work(statement))
            await begun.wait()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await apples(ms) == 3
            await ms.log("x").append(b"goes on")
    del task
    gc.collect()
    assert not reported  # the interrupted statement is the caller's own doing


async def test_a_task_that_is_cancelled_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms:

        async def wait() -> None:
            async with ms.begin():
                pytest.fail("the turn was taken twice")

        async with ms.begin() as tx:
            await tx.sql("UPDATE stock SET n = 1")
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with await aio.open(tmp_path / "a.db") as other, other.begin():
            task = asyncio.create_task(wait())
            while ms.session.store.is_committing is False:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with ms.begin() as tx:
            assert (await tx.sql("SELECT n FROM stock")).scalar() == 1


async def test_tasks_go_on_after_the_limit_of_another(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms:
        begun = asyncio.Event()

        async def sleep() -> None:
            async with ms.begin(timeout=SHORT_S) as tx:
                await tx.sql("DELETE FROM stock")
                begun.set()
                await asyncio.Event().wait()  # until it is cancelled

        task = asyncio.create_task(sleep())
        await begun.wait()
        await ms.log("x").append(b"goes on")
        async with ms.begin() as tx:
            assert (await tx.sql("SELECT n FROM stock")).scalar() == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_end_of_a_block_that_lasted_too_long_raises(tmp_path: Path) -> None:
    async with await prepared(tmp_path / "a.db") as ms, await aio.open(tmp_path / "a.db") as other:

        async def block() -> None:
            async with ms.begin(timeout=SHORT_S) as tx:
                await tx.sql("DELETE FROM stock")
                await other.log("x").append(b"waits for the limit")

        with pytest.raises(TransactionExpired):
            await block()
        assert await apples(ms) == 3


@pytest.mark.parametrize("boundary", ["begin", "end"])
async def test_a_cancel_at_the_boundary_of_a_savepoint_stores_nothing(
    tmp_path: Path, boundary: str
) -> None:
    async with await prepared(tmp_path / "a.db") as ms:

        async def sell(tx: aio.InteractiveTransaction) -> None:
            async with tx.savepoint():
                await tx.sql("UPDATE stock SET n = 0")
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
                if boundary == "begin":
                    async with tx.savepoint():
                        pass

        async def go_on_after_a_cancel() -> None:
            async with ms.begin() as tx:
                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(sell(tx))

        with pytest.raises(RuntimeError, match="the transaction has ended"):
            await go_on_after_a_cancel()
        assert await apples(ms) == 3
