"""A cursor over all partitions of a log: a position in each, and one commit for what is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import convert

from millstream.aio.cursor import Cursor
from millstream.aio.log import Log
from millstream.aio.runtime import Lock
from millstream.aio.transaction import Transaction
from millstream.command import AsyncSession, Transact
from millstream.errors import InvalidInput
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.log.progress import CursorProgress, OnLost, check_on_lost, check_section
from millstream.numbers import checked_numbers
from millstream.partitioning import partition_name
from millstream.record import CursorInfo, LogInfo, PartitionOffset, Record, Seconds

Taken = Record | PartitionOffset | Iterable["Record | PartitionOffset"]
"""What is acknowledged: an offset alone does not say of which partition."""


class PartitionedSource(Protocol):
    """What such a cursor reads: a log with partitions."""

    name: str

    async def parts(self) -> list[LogInfo]:
        """What a listing says of each partition."""

    async def wait(self, offsets: Sequence[int], *, timeout: Seconds | None = None) -> bool:
        """Wait until one partition has a record at its offset."""


async def open_partitioned_cursor(
    session: AsyncSession,
    source: PartitionedSource,
    name: str,
    *,
    durable: bool,
    start: str,
    section: int,
    on_lost: OnLost = "skip",
) -> PartitionedCursor:
    """The cursor of that name, in every partition; made, at `start`, where there is none."""
    check_name(name, "cursor")
    check_section(section)
    check_on_lost(on_lost)
    if start not in ("earliest", "latest"):
        raise InvalidInput(
            f"a cursor on a log with partitions starts at 'earliest' or 'latest', not {start!r}; "
            "`seek` sets an offset for each"
        )
    cursor = PartitionedCursor(
        session, source, name, durable=durable, section=section, on_lost=on_lost
    )
    await cursor.open(len(await source.parts()), start)
    return cursor


@checked_numbers
class PartitionedCursor:
    """How far one named reader of a log with partitions has come, in each of them.

    Coroutines that share one take different records. Readers that are to share the records between
    processes use a queue.
    """

    def __init__(
        self,
        session: AsyncSession,
        source: PartitionedSource,
        name: str,
        *,
        durable: bool,
        section: int,
        on_lost: OnLost = "skip",
    ) -> None:
        self.name = name
        self.log_name = source.name
        self.durable = durable
        self._session = session
        self._source = source
        self._section = section
        self._on_lost: OnLost = on_lost
        self._cursors: list[Cursor] = []
        self._turn = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"PartitionedCursor({self.log_name!r}, {self.name!r})"

    async def open(self, count: int, start: str) -> None:
        """Have a position in each of so many partitions; what is new begins at `start`."""
        names = [partition_name(self.log_name, one) for one in range(len(self._cursors), count)]
        steps = [c.OpenCursor(one, self.name, start, self._section, self.durable) for one in names]
        if not steps:
            return
        found = await self._session.execute(Transact([*steps]))
        for log, info in zip(names, convert(found, list[CursorInfo]), strict=True):
            self._cursors.append(
                Cursor(
                    self._session,
                    Log(self._session, log),
                    self.name,
                    durable=self.durable,
                    progress=CursorProgress(info, self._section),
                    on_lost=self._on_lost,
                )
            )

    async def lost(self) -> dict[int, list[tuple[int, int]]]:
        """Ranges of each partition that were forgotten before this handle had come there."""
        return {
            number: list(cursor.progress.lost)
            for number, cursor in enumerate(self._cursors)
            if cursor.progress.lost
        }

    async def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """The next unacknowledged records, at most `n`, in order within each partition.

        The partitions are taken from in turn. It waits for the first record if asked.
        """
        found, ends = await self._take(n)
        if found or wait is None or n < 1:
            return found
        return (await self._take(n))[0] if await self._source.wait(ends, timeout=wait) else []

    async def ack(self, records: Taken) -> None:
        """Mark records as processed, in one commit; in any order, also twice."""
        parts = self.by_partition(records)
        if not self.durable or len(parts) == 1:
            for cursor, offsets in parts:
                await cursor.ack(offsets)
            return
        async with Transaction(self._session) as tx:
            for cursor, offsets in parts:
                tx.ack(cursor, offsets)

    def by_partition(self, records: Taken) -> list[tuple[Cursor, list[Record | int]]]:
        """The cursor of each partition that has some of these records, and which."""
        found: dict[int, list[Record | int]] = {}
        for one in records if isinstance(records, Iterable) else [records]:
            if isinstance(one, Record) and one.log == partition_name(self.log_name, one.partition):
                found.setdefault(one.partition, []).append(one)
            elif isinstance(one, PartitionOffset):
                found.setdefault(one.partition, []).append(one.offset)
            else:
                raise InvalidInput(
                    f"an acknowledgement names records of log {self.log_name!r}, or places such as "
                    f"PartitionOffset(partition, offset); not {one!r:.200}"
                )
        for number in found:
            if not 0 <= number < len(self._cursors):
                raise InvalidInput(f"log {self.log_name!r} has no partition {number}")
        return [(self._cursors[number], some) for number, some in found.items()]

    async def floors(self) -> list[int]:
        """Of each partition, the offset below which everything is acknowledged."""
        return [await one.floor() for one in self._cursors]

    async def is_empty(self) -> bool:
        """Whether every record of every partition has been acknowledged."""
        await self.open(len(await self._source.parts()), "earliest")
        empty = [await one.is_empty() for one in self._cursors]
        return all(empty)

    async def reset(self) -> None:
        """Go back to the floors, so that everything unacknowledged comes again."""
        async with self._lock:
            for one in self._cursors:
                await one.reset()

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Set the floors of the partitions that are named, in one commit."""
        for number in offsets:
            if number not in range(len(self._cursors)):
                raise InvalidInput(f"log {self.log_name!r} has no partition {number!r}")
        async with self._lock:
            if not self.durable:
                for number, offset in offsets.items():
                    await self._cursors[number].seek(offset)
                return
            async with Transaction(self._session) as tx:
                for number, offset in offsets.items():
                    tx.seek(self._cursors[number], offset)

    async def flush(self) -> list[int]:
        """Move the durable floors up to their last section boundaries; answers where they stand."""
        return [await one.flush() for one in self._cursors]

    async def info(self) -> list[CursorInfo]:
        """How the cursor stands in each partition."""
        return [await one.info() for one in self._cursors]

    async def delete(self) -> bool:
        """Forget the cursor in all partitions; False if it was gone already."""
        steps = [c.DeleteCursor(one.log_name, self.name) for one in self._cursors]
        gone = await self._session.execute(Transact([*steps]))
        return any(gone)

    async def _take(self, n: int) -> tuple[list[Record], list[int]]:
        """The next records, and where each partition ended then."""
        async with self._lock:
            parts = await self._source.parts()
            await self.open(len(parts), "earliest")
            ends = [one.end_offset for one in parts]
            found: list[Record] = []
            count = len(parts)
            first, self._turn = self._turn, self._turn + 1
            for number in [(first + at) % count for at in range(count)]:
                cursor = self._cursors[number]
                if len(found) >= n:
                    break
                if cursor.progress.position != ends[number]:
                    found += await cursor.take(n - len(found))
            return found, ends
