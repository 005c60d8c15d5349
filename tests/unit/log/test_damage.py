"""Damage: what is sound before it is read first, and the error says where what follows begins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from millstream import Log, PartitionOffset
from millstream.aio.database import Millstream as AsyncMillstream
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import open_store
from millstream.engine.commit import Commit
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.record import Record
from tests.unit.damaging import Fragile
from tests.unit.server.asking import serving

pytestmark = pytest.mark.embedded


@pytest.fixture
def fragile() -> Iterator[Fragile]:
    made = Fragile()
    yield made
    made.ms.close()


def singles(fragile: Fragile, count: int = 12) -> Log:
    """Records that were folded one by one, so that the fold joined none of them."""
    log = fragile.ms.log("x")
    for n in range(count):
        log.append(str(n))
        fragile.settle()
    return log


def batches(fragile: Fragile, count: int = 4, each: int = 3) -> Log:
    log = fragile.ms.log("x")
    for n in range(count):
        log.append_many([str(n * each + i) for i in range(each)])
    fragile.settle()
    return log


def told(records: Iterator[Record]) -> tuple[list[int], CorruptionError | None]:
    """The offsets that came, and the error behind them."""
    found: list[int] = []
    try:
        for record in records:
            assert record.text == str(record.offset)
            found.append(record.offset)
    except CorruptionError as error:
        return found, error
    return found, None


def places(error: CorruptionError | None) -> tuple[str, int, int]:
    assert error is not None
    return error.log, error.offset, error.stop


@pytest.mark.parametrize("how", ["spoil", "lose"])
@pytest.mark.parametrize("at", [0, 1, 7, 8, 11])
def test_a_damaged_value_hides_nothing_before_it(fragile: Fragile, how: str, at: int) -> None:
    log = singles(fragile)
    getattr(fragile, how)("x", at)

    found, error = told(log.read())

    assert found == list(range(at))
    assert places(error) == ("x", at, at + 1)
    assert f"offset {at} " in str(error)
    assert f"offset {at + 1} on" in str(error)
    assert told(log.read(at + 1)) == (list(range(at + 1, 12)), None)


@pytest.mark.parametrize("how", ["spoil", "lose", "spoil_entry"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_damaged_block_hides_nothing_before_it(fragile: Fragile, how: str, at: int) -> None:
    log = batches(fragile)
    getattr(fragile, how)("x", 3 * at + 1)

    found, error = told(log.read())

    assert found == list(range(3 * at))
    assert places(error) == ("x", 3 * at, 3 * at + 3)
    assert f"offsets {3 * at} to {3 * at + 2} " in str(error)
    assert told(log.read(3 * at + 3)) == (list(range(3 * at + 3, 12)), None)
    assert places(told(log.read(3 * at + 2))[1]) == ("x", 3 * at + 2, 3 * at + 3)


@pytest.mark.parametrize("how", ["spoil", "lose", "spoil_entry"])
def test_a_block_of_joined_singles_is_damaged_as_a_whole(fragile: Fragile, how: str) -> None:
    log = fragile.ms.log("x")
    for n in range(12):
        log.append(str(n))
    log.append_many(["12", "13"])
    fragile.settle()
    getattr(fragile, how)("x", 5)

    found, error = told(log.read())

    assert found == []
    assert places(error) == ("x", 0, 12)
    assert told(log.read(12)) == ([12, 13], None)


def test_a_lost_entry_ends_where_the_next_begins(fragile: Fragile) -> None:
    log = batches(fragile)
    with fragile.engine.write() as writer:
        writer.commit(Commit(deletes=[fragile.entry("x", 4)]))

    assert told(log.read())[0] == [0, 1, 2]
    assert places(told(log.read())[1]) == ("x", 3, 6)
    assert told(log.read(6)) == (list(range(6, 12)), None)


def test_damage_beside_damage_is_told_one_after_the_other(fragile: Fragile) -> None:
    log = batches(fragile)
    fragile.spoil_entry("x", 3)
    fragile.spoil_entry("x", 6)
    fragile.spoil("x", 9)

    found: list[tuple[int, int]] = []
    start = 0
    while (error := told(log.read(start))[1]) is not None:
        found.append((error.offset, error.stop))
        start = error.stop

    assert found == [(3, 6), (6, 9), (9, 12)]


def test_without_values_only_metadata_counts(fragile: Fragile) -> None:
    from millstream.log.commands import ReadBlocks

    batches(fragile)
    fragile.spoil("x", 0)
    fragile.spoil_entry("x", 6)
    session = fragile.ms.session

    blocks = session.execute(ReadBlocks("x", 0, 12, 2**20, values=False))
    assert [block.offsets for block in blocks] == [range(3), range(3, 6)]
    with pytest.raises(CorruptionError) as error:
        session.execute(ReadBlocks("x", 6, 12, 2**20, values=False))
    assert places(error.value) == ("x", 6, 9)


def test_a_fork_tells_the_damage_of_its_parent(fragile: Fragile) -> None:
    log = batches(fragile)
    fork = log.fork("y")
    fork.append_many(["12", "13"])
    fragile.settle()
    fragile.spoil_entry("x", 9)

    found, error = told(fork.read())

    assert found == list(range(9))
    assert places(error) == ("y", 9, 12)
    assert told(fork.read(12)) == ([12, 13], None)


def test_a_tail_gives_what_is_sound_and_then_raises(fragile: Fragile) -> None:
    log = singles(fragile)
    fragile.spoil("x", 4)

    assert told(log.tail(2, timeout=0))[0] == [2, 3]
    assert places(told(log.tail(2, timeout=0))[1]) == ("x", 4, 5)
    assert told(log.tail(5, timeout=0)) == (list(range(5, 12)), None)


def test_a_cursor_takes_what_is_sound_and_goes_on_behind(fragile: Fragile) -> None:
    log = batches(fragile)
    cursor = log.cursor("c")
    fragile.spoil("x", 3)

    assert [one.offset for one in cursor.take(100)] == [0, 1, 2]
    with pytest.raises(CorruptionError) as error:
        cursor.take(100)
    cursor.ack(range(error.value.offset, error.value.stop))
    assert [one.offset for one in cursor.take(100)] == list(range(6, 12))


def test_damage_of_a_partition_hides_no_other_partition(fragile: Fragile) -> None:
    orders = fragile.ms.log("orders", partitions=3)
    for partition in (*range(3), *range(3)):
        orders.append(b"x", partition=partition)
        fragile.settle()
    cursor = orders.cursor("c")
    fragile.spoil("orders-partition-1", 0)

    def take() -> list[tuple[int, int]] | CorruptionError:
        try:
            return [(one.partition, one.offset) for one in cursor.take(100)]
        except CorruptionError as error:
            return error

    first, damage, last = take(), take(), take()

    assert first == [(0, 0), (0, 1)]
    assert isinstance(damage, CorruptionError)
    assert places(damage) == ("orders-partition-1", 0, 1)
    assert last == [(2, 0), (2, 1)]
    assert isinstance(take(), CorruptionError)
    cursor.ack(PartitionOffset(1, damage.offset))
    assert take() == [(1, 1)]
    assert take() == []


def test_coroutines_take_what_is_sound(fragile: Fragile) -> None:
    batches(fragile)
    fragile.spoil("x", 3)
    fragile.ms.close()

    async def take() -> list[list[int]]:
        store = open_store(fragile.engine.reopen(), clock=fragile.clock)
        async with AsyncMillstream(AsyncEmbeddedSession(store)) as ms:
            log = ms.log("x")
            cursor = await log.cursor("c")
            found = [[one.offset for one in await cursor.take(100)]]
            with pytest.raises(CorruptionError) as error:
                await cursor.take(100)
            found.append([one.offset async for one in log.read(error.value.stop)])
        return found

    assert asyncio.run(take()) == [[0, 1, 2], list(range(6, 12))]


def test_a_server_gives_what_is_sound_and_says_where_to_go_on(fragile: Fragile) -> None:
    batches(fragile)
    fragile.spoil("x", 3)
    fragile.ms.close()

    async def ask() -> None:
        async with serving(engine=fragile.engine.reopen()) as rest:
            page = (await rest.get("/logs/x/records")).json()
            assert [one["offset"] for one in page["records"]] == [0, 1, 2]
            assert page["next"] == 3
            refused = await rest.get("/logs/x/records?start=3")
            assert refused.status_code == 500
            problem = refused.json()
            assert problem["title"] == "CorruptionError"
            told = problem["data"]
            assert (told["log"], told["offset"], told["stop"]) == ("x", 3, 6)
            page = (await rest.get("/logs/x/records?start=6")).json()
            assert [one["offset"] for one in page["records"]] == list(range(6, 12))
            await rest.put("/logs/x/cursors/c", json={})
            taken = (await rest.post("/logs/x/cursors/c/take", json={"n": 10})).json()
            assert [one["offset"] for one in taken["records"]] == [0, 1, 2]
            told = await rest.post("/logs/x/cursors/c/take", json={"n": 10, "position": 3})
            assert told.json()["data"]["stop"] == 6

    asyncio.run(ask())


def test_a_row_that_holds_no_bytes_is_damage(fragile: Fragile) -> None:
    """Keys say where damage lies, whatever stands in the row."""
    log = batches(fragile)
    key = fragile.entry("x", 6)
    assert keys.pair(key)[1] == 8
    fragile.engine.corrupt(key, bit=9)
    assert places(told(log.read())[1]) == ("x", 6, 9)
