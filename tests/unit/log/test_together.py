"""Appends that wait together become one append; each caller gets its own answer, or its own error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream import Log, Millstream, Producer, aio
from millstream.embedded.rules import operation
from millstream.errors import EndMoved, Locked, MillstreamError, NotFound
from millstream.format import keys
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.log.rules.append import BLOCK_RECORDS_MIN, BYTES_MAX
from millstream.store.commit.ticket import Ticket
from millstream.testing import Probe, SimulatedClock

pytestmark = pytest.mark.embedded


def asked(log: str, number: int, *, size: int = 0, **more: Any) -> Append:
    """An append of one record; every third has a key, every fourth a timestamp of its own."""
    record = pack_single(
        b"%d" % number + bytes(size),
        key=f"k{number}" if number % 3 == 0 else None,
        headers={"n": number} if number % 2 else None,
        timestamp=number if number % 4 == 0 else None,
        limits=Limits(),
    )
    return Append(log, record, **more)


def commit(ms: Millstream, commands: Sequence[Append]) -> list[int | MillstreamError]:
    """Commit as one group; what each caller is answered."""
    over = threading.Semaphore(0)
    tickets = [Ticket(operation(one), lambda _: over.release()) for one in commands]
    Probe(ms).store.submit(tickets)
    for _ in tickets:
        assert over.acquire(timeout=60)
    return [one.error if isinstance(one.error, MillstreamError) else one.result for one in tickets]


def facts(log: Log) -> list[tuple[Any, ...]]:
    return [
        (one.offset, one.value, one.key, one.headers, one.timestamp, one.appended)
        for one in log.read()
    ]


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("count", [2, BLOCK_RECORDS_MIN - 1, BLOCK_RECORDS_MIN, 100])
def test_what_waits_together_reads_as_if_it_came_one_by_one(
    ms: Millstream, clock: SimulatedClock, count: int, folded: bool
) -> None:
    together, apart = ms.log("together"), ms.log("apart")
    for log in (together, apart):
        log.append(b"before")
    clock.advance(1)

    found = commit(ms, [asked("together", number) for number in range(count)])
    for number in range(count):
        ms.session.execute(asked("apart", number))

    assert found == list(range(1, count + 1))
    if folded:
        ms.fold()
    assert facts(together) == facts(apart)
    assert together.info().timestamp == apart.info().timestamp


def test_many_become_one_block_and_few_stay_single(ms: Millstream) -> None:
    commit(ms, [asked("many", number) for number in range(BLOCK_RECORDS_MIN)])
    commit(ms, [asked("few", number) for number in range(BLOCK_RECORDS_MIN - 1)])
    many, few = (keys.prefix(keys.ENTRY) + n.to_bytes(8, "big") for n in (1, 2))
    found = Probe(ms).rows(keys.ENTRY)
    assert sum(key.startswith(many) for key in found) == 1
    assert sum(key.startswith(few) for key in found) == BLOCK_RECORDS_MIN - 1


def test_what_is_not_plain_keeps_its_own_answer(ms: Millstream) -> None:
    ms.log("x").append(b"before")
    producer = Producer("p", 1)
    commands = [
        *[asked("x", number) for number in range(20)],
        asked("x", 20, expect_end=21),
        asked("x", 21, expect_end=5),
        asked("x", 22, producer=producer),
        asked("x", 22, producer=producer),
        *[asked("x", number) for number in range(23, 43)],
    ]

    found = commit(ms, commands)

    assert found[:21] == list(range(1, 22))
    assert isinstance(found[21], EndMoved)
    assert found[22:24] == [22, 22]
    assert found[24:] == list(range(23, 43))
    assert [record.offset for record in ms.log("x").read()] == list(range(43))


def test_a_held_log_refuses_each_of_them(ms: Millstream) -> None:
    ms.log("x").append(b"before")
    stage = ms.log("x").stage()

    found = commit(ms, [asked("x", number) for number in range(20)])

    assert all(isinstance(one, Locked) for one in found)
    assert len({id(one) for one in found}) == 20
    stage.close()
    assert commit(ms, [asked("x", number) for number in range(20)]) == list(range(1, 21))


def test_logs_that_are_made_by_it_and_logs_that_alternate(ms: Millstream) -> None:
    commands = [asked(log, number) for number in range(30) for log in ("a", "b")]

    found = commit(ms, commands)

    assert found == [number for number in range(30) for _ in "ab"]
    assert [facts(ms.log(log))[-1][1] for log in "ab"] == [b"29", b"29"]


def test_appends_to_the_inbox_of_no_queue_are_refused_each(ms: Millstream) -> None:
    found = commit(ms, [asked("queue:nowhere", number) for number in range(20)])
    assert all(isinstance(one, NotFound) for one in found)


def test_large_values_are_appended_one_by_one(ms: Millstream) -> None:
    size = BYTES_MAX // 20
    found = commit(ms, [asked("x", number, size=size) for number in range(24)])
    assert found == list(range(24))
    assert [len(record.value) > size for record in ms.log("x").read()] == [True] * 24


def test_coroutines_get_the_offsets_of_their_own_records(tmp_path: Path) -> None:
    async def work() -> dict[int, bytes]:
        async with await aio.open(tmp_path / "a.db") as ms:
            log, found = ms.log("x"), dict[int, bytes]()

            async def append(name: int) -> None:
                for number in range(5):
                    value = b"%d-%d" % (name, number)
                    found[await log.append(value)] = value

            await asyncio.gather(*map(append, range(40)))
            assert {record.offset: record.value async for record in log.read()} == found
            return found

    assert sorted(asyncio.run(work())) == list(range(200))
