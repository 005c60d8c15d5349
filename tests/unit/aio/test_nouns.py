"""The nouns answer as their sync twins do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import millstream
from millstream import Item, Limits, Producer, Record, Retention, aio
from millstream.errors import (
    EndMoved,
    InvalidInput,
    Locked,
    MetadataConflict,
    NotFound,
    OutOfRange,
    Truncated,
)


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


async def test_what_is_appended_is_read_here_and_by_the_sync_surface(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("orders")

        assert await log.append({"id": 1}, key="k", headers={"n": 1}) == 0
        assert await log.append_many([b"a", Item(b"b").value], keys=[b"x", None]) == range(1, 3)
        assert await log.append_many([]) == range(3, 3)
        assert await log.append_many([b"last"]) == range(3, 4)

        found = [record async for record in log.read()]

    with millstream.open(tmp_path / "a.db") as again:
        assert list(again.log("orders").read()) == found
    assert found[0].json() == {"id": 1}
    assert [record.key for record in found] == [b"k", b"x", None, None]


async def test_a_log_is_described(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        assert (await log.first(), await log.last(), await log.get(0)) == (None, None, None)
        assert await log.info() is None
        await log.append_many([b"0", b"1", b"2"])

        assert await log.truncate(before=1) == 1

        assert (await log.start_offset(), await log.end_offset(), await log.len()) == (1, 3, 2)
        first, last = await log.first(), await log.last()
        assert first is not None
        assert last is not None
        assert (first.offset, last.offset) == (1, 2)
        assert await log.get(0) is None
        assert await log.get(3) is None
        assert await log.get(2) == last
        assert [info.name async for info in ms.logs()] == ["x"]
        assert "'x'" in repr(log)
        with pytest.raises(Truncated):
            [record async for record in log.read(0)]
        assert [record.offset async for record in log.read(-1)] == [2]
        with pytest.raises(InvalidInput):
            await log.truncate(before=-1)
        assert await log.delete()
        assert not await log.delete()


async def test_a_long_read_streams_in_pages(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db", limits=Limits(read_bytes_max=100)) as ms:
        log = ms.log("x")
        for n in range(5):
            await log.append_many([bytes([n]) * 60] * 3)

        blocks = [block async for block in log.read_blocks(1, 14)]

        assert [len(block) for block in blocks] == [2, 3, 3, 3, 2]
        assert len([record async for record in log.read(1, 14)]) == 13


async def test_a_log_that_is_deleted_while_it_is_read_ends(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db", limits=Limits(read_bytes_max=1)) as ms:
        log = ms.log("x")
        await log.append_many([b"a" * 50, b"b" * 50])
        await log.append_many([b"c" * 50, b"d" * 50])
        seen = []
        async for record in log.read():
            seen.append(record.offset)
            await log.delete()

        assert seen == [0, 1]


async def test_errors_come_to_the_coroutine_that_caused_them(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        answers = await asyncio.gather(
            log.append(b"a", expect_end=0),
            log.append(b"b", expect_end=7),
            log.append(b"c", expect_end=1),
            return_exceptions=True,
        )

        assert answers[0] == 0
        assert isinstance(answers[1], EndMoved)
        assert (answers[1].end, answers[1].expected) == (1, 7)
        assert answers[2] == 1
        with pytest.raises(InvalidInput):
            await log.append(object())


async def test_metadata_is_set_compared_and_deleted(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        metadata = ms.log("x").metadata
        await metadata.set("owner", "me")
        await metadata.compare_and_set("owner", expect="me", value={"id": 2})

        with pytest.raises(MetadataConflict):
            await metadata.compare_and_set("owner", expect="me", value="you")
        with pytest.raises(KeyError):
            await metadata.delete("absent")

        assert await metadata.all() == {"owner": {"id": 2}}
        assert await metadata.get("owner") == {"id": 2}
        assert await metadata.get("absent", 5) == 5
        await metadata.delete("owner")
        assert await metadata.all() == {}


async def test_retention_is_said_and_enforced(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        assert await log.retention() == Retention()
        await log.append_many([b"a", b"b", b"c"])
        await log.retain(count=1)

        assert await log.retention() == Retention(count=1)
        await log.enforce_retention()
        assert await log.len() == 1
        with pytest.raises(InvalidInput):
            await log.retain(count=-1)


async def test_a_cursor_takes_acknowledges_and_resumes(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append_many([b"0", b"1", b"2", b"3"])
        cursor = await log.cursor("c")

        taken = await cursor.take(3)
        await cursor.ack(taken[1])
        assert values(taken) == [b"0", b"1", b"2"]
        assert (await cursor.floor(), await cursor.position()) == (0, 3)
        assert (await cursor.is_acked(0), await cursor.is_acked(1)) == (False, True)
        await cursor.reset()
        assert values(await cursor.take(9)) == [b"0", b"2", b"3"]
        await cursor.ack_up_to(4)

        assert (await cursor.is_empty(), await cursor.size(), await cursor.flush()) == (True, 4, 4)
        assert [info.floor for info in await log.cursors()] == [4]
        await cursor.seek(3)
        assert values(await cursor.take()) == [b"3"]
        with pytest.raises(OutOfRange):
            await cursor.ack(4)
        with pytest.raises(InvalidInput):
            await log.cursor("d", section=0)
        assert await cursor.delete()
        assert not await log.delete_cursor("c")
        with pytest.raises(NotFound):
            await cursor.info()


async def test_a_cursor_in_memory_flushes_by_sections(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append_many([b"x"] * 25)
        cursor = await log.cursor("c", durable=False, section=10)
        await cursor.ack(range(15))
        assert await cursor.flush() == 10
        with pytest.raises(OutOfRange):
            await cursor.ack_up_to(26)
        with pytest.raises(OutOfRange):
            await cursor.seek(26)

    async with await aio.open(tmp_path / "a.db") as ms:
        cursor = await ms.log("x").cursor("c", durable=False, section=10)
        assert await cursor.floor() == 10
        assert [record.offset for record in await cursor.take(99)] == [*range(10, 25)]


async def test_coroutines_that_share_a_cursor_take_different_records(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db", limits=Limits(read_bytes_max=1)) as ms:
        log = ms.log("x")
        for n in range(20):
            await log.append(bytes([n]) * 50)
        cursor = await log.cursor("c")

        taken = await asyncio.gather(*(cursor.take(4) for _ in range(5)))

        assert sorted(r.offset for some in taken for r in some) == [*range(20)]


async def test_a_cancelled_take_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await aio.open(tmp_path / "a.db", limits=Limits(read_bytes_max=1)) as ms:
        log = ms.log("x")
        for n in range(20):
            await log.append(bytes([n]) * 50)
        cursor = await log.cursor("c")
        read, halfway, never = log.read_next, asyncio.Event(), asyncio.Event()

        async def read_half(*given: int) -> AsyncIterator[Record]:
            async for record in read(*given):
                if record.offset == 3:
                    halfway.set()
                    await never.wait()
                yield record

        monkeypatch.setattr(log, "read_next", read_half)
        taking = asyncio.ensure_future(cursor.take(20))
        await halfway.wait()
        taking.cancel()
        await asyncio.wait([taking])
        monkeypatch.undo()

        assert taking.cancelled()
        assert [record.offset for record in await cursor.take(20)] == [*range(20)]


async def test_staged_records_are_readable_here_and_visible_at_commit(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append(b"0")
        async with await log.stage(section=4) as stage:
            assert await stage.append(b"1", key=b"k", headers={"h": 1}) == 1
            assert await stage.append({"n": 2}) == 2
            staged = [record async for record in stage.read()]
            assert values(staged) == [b"0", b"1", b'{"n":2}']
            assert (staged[1].key, staged[1].headers) == (b"k", {"h": 1})
            assert (await stage.get(2), await stage.get(3)) == (staged[2], None)
            assert await log.end_offset() == 1
            with pytest.raises(Locked):
                await log.append(b"other")
            cursor = await stage.cursor("c")
            assert len(await cursor.take(9)) == 3
            assert await stage.append(b"3") == 3
            assert await log.end_offset() == 4
            await stage.append(b"gone")
            assert await stage.discard() == 1
            await stage.append(b"4")
            assert not await stage.wait(5)

        assert await log.append(b"5") == 5
        assert [r.value async for r in log.read(3)] == [b"3", b"4", b"5"]
        with pytest.raises(InvalidInput):
            await log.stage(section=0)


async def test_many_coroutines_stage_at_once(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        async with await log.stage(section=7) as stage:
            offsets = await asyncio.gather(*(stage.append(str(n)) for n in range(100)))

        assert sorted(offsets) == [*range(100)]
        stored = {record.offset: record.text async for record in log.read()}
        assert stored == {offset: str(n) for n, offset in enumerate(offsets)}


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_cancelled_commit_leaves_the_stage_usable(tmp_path: Path, turns: int) -> None:
    """However far the commit has come: the event loop has had so many turns."""
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        stage = await log.stage()
        await stage.append(b"0")
        committing = asyncio.ensure_future(stage.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])

        await stage.append(b"1")
        assert await stage.commit() == 2
        await stage.close()
        assert [record.value async for record in log.read()] == [b"0", b"1"]


async def test_a_transaction_commits_all_steps_or_none(tmp_path: Path, home: str) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        source, target = ms.log("source"), ms.log("target")
        await source.append(b"in")
        cursor = await source.cursor("c")
        async with ms.transaction() as tx:
            done = tx.ack(cursor, await cursor.take())
            put = tx.append(target, b"out", producer=Producer("p", 1))
            many = tx.append_many("target", [b"1", b"2"])
            tx.set_metadata(target, "k", 1)
            if home == "embedded":
                tx.sql("CREATE TABLE app (n INTEGER)")
                added = tx.sql("INSERT INTO app VALUES (?)", [1])
            with pytest.raises(RuntimeError):
                _ = done.result

        assert (done.result, put.result, many.result) == (1, 0, 1)
        assert await target.len() == 3
        assert await target.metadata.all() == {"k": 1}
        if home == "embedded":
            assert added.result.changed == 1
            assert list(await ms.sql("SELECT n FROM app")) == [(1,)]

        async def fail_in_a_step() -> None:
            async with ms.transaction() as tx:
                tx.append(target, b"undone")
                tx.append(source, b"no", expect_end=9)

        async def fail_in_the_block() -> None:
            async with ms.transaction() as tx:
                tx.append(target, b"undone")
                _ = 1 / 0

        with pytest.raises(EndMoved):
            await fail_in_a_step()
        with pytest.raises(ZeroDivisionError):
            await fail_in_the_block()
        assert await target.len() == 3
