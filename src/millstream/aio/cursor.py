"""The cursor as coroutines hold it: the same progress as `millstream.log.cursor`, awaited.

Several coroutines may share one: they take different records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from millstream.command import AsyncSession
from millstream.errors import CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.names import check_name
from millstream.log.progress import Acknowledged, Progress, check_within, ranges_of
from millstream.record import CursorInfo, Record, Seconds


class Source(Protocol):
    """What a cursor reads: a log, or a staging handle over one."""

    name: str

    def read(self, start: int | None = None, stop: int | None = None) -> AsyncIterator[Record]:
        """The records in [start, stop)."""

    async def start_offset(self) -> int:
        """The first offset that is there."""

    async def end_offset(self) -> int:
        """The next offset to be given out."""

    async def wait(self, offset: int, *, timeout: Seconds | None = None) -> bool:
        """Wait until there is a record at the offset."""


async def open_cursor(
    session: AsyncSession,
    source: Source,
    name: str,
    *,
    durable: bool,
    start: int | str,
    section: int,
) -> Cursor:
    """The cursor of that name; made, at `start`, if there is none."""
    if section < 1:
        raise InvalidInput(f"a section has at least one record, not {section}")
    check_name(name, "cursor")
    info = await session.execute(c.OpenCursor(source.name, name, start, section, durable))
    progress = Progress(info)
    progress.section = section
    return Cursor(session, source, name, durable=durable, progress=progress)


class Cursor:
    """How far one named reader has come."""

    def __init__(
        self,
        session: AsyncSession,
        source: Source,
        name: str,
        *,
        durable: bool,
        progress: Progress,
    ) -> None:
        self.name = name
        self.log_name = source.name
        self.durable = durable
        self._session = session
        self._source = source
        self.progress = progress
        self._moving = asyncio.Lock()

    def __repr__(self) -> str:
        return f"aio.Cursor({self._source.name!r}, {self.name!r})"

    async def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """The next unacknowledged records, at most `n`, in order; waits for the first if asked."""
        found = await self._take(n)
        if found or wait is None or n < 1:
            return found
        arrived = await self._source.wait(self.progress.position, timeout=wait)
        return await self._take(n) if arrived else []

    async def ack(self, records: Acknowledged) -> None:
        """Mark a record, an offset, or several, as processed; in any order, also twice."""
        await self._ack(ranges_of(records))

    async def ack_up_to(self, offset: int) -> None:
        """Mark everything before an offset as processed."""
        if offset > 0:
            await self._ack([(0, offset)])

    async def is_acked(self, offset: int) -> bool:
        """Whether a position has been acknowledged; what was truncated counts as such."""
        return offset in self.progress.marks or offset < await self._source.start_offset()

    async def position(self) -> int:
        """The next position that `take` looks at."""
        return self.progress.position

    async def floor(self) -> int:
        """Everything below is acknowledged."""
        return self.progress.marks.next_gap(await self._source.start_offset())[0]

    async def size(self) -> int:
        """How many records have ever been appended: the position that the next one gets."""
        return await self._source.end_offset()

    async def is_empty(self) -> bool:
        """Whether every record has been acknowledged."""
        return await self.floor() >= await self._source.end_offset()

    async def reset(self) -> None:
        """Go back to the floor, so that everything unacknowledged comes again."""
        async with self._moving:
            if self.durable:
                section = self.progress.section
                self.progress = Progress(await self.info())
                self.progress.section = section
            self.progress.position = self.progress.marks.floor

    async def seek(self, offset: int) -> None:
        """Set the floor, forwards or back; what was acknowledged above it is forgotten."""
        async with self._moving:
            if self.durable:
                await self._session.execute(c.MoveCursor(self._source.name, self.name, offset))
            else:
                check_within([(offset - 1, offset)], await self._source.end_offset())
            self.progress.moved(offset)

    async def flush(self) -> int:
        """Move the durable floor up to the last section boundary; answers where it stands."""
        if self.durable:
            return await self.floor()
        self.progress.marks.raise_floor(await self._source.start_offset())
        target = self.progress.flushable()
        return await self._session.execute(
            c.MoveCursor(self._source.name, self.name, target, forward=True)
        )

    async def info(self) -> CursorInfo:
        """How the cursor stands in the store."""
        found = await self._session.execute(c.DescribeCursor(self._source.name, self.name))
        if found is None:
            raise NotFound(f"log {self._source.name!r} has no cursor {self.name!r}", name=self.name)
        return found

    async def delete(self) -> bool:
        """Forget the cursor; False if it was gone already."""
        return await self._session.execute(c.DeleteCursor(self._source.name, self.name))

    async def _take(self, n: int) -> list[Record]:
        async with self._moving:
            before = self.progress.position
            try:
                return await self._advance(n)
            except BaseException:
                self.progress.position = before  # what was not handed over comes again
                raise

    async def _advance(self, n: int) -> list[Record]:
        progress, source = self.progress, self._source
        found: list[Record] = []
        while len(found) < n:
            end = await source.end_offset()
            first, stop = progress.next_gap(await source.start_offset(), end)
            if first >= stop:
                progress.position = max(progress.position, min(first, end))
                break
            try:
                async for record in source.read(first, min(stop, first + n - len(found))):
                    found.append(record)
                    progress.position = record.offset + 1
            except Truncated:
                continue  # retention went past us meanwhile: go on at the new start
            except CorruptionError:
                if not found:
                    raise
                break  # what is sound first; the next take says what is damaged
        return found

    async def _ack(self, ranges: list[tuple[int, int]]) -> None:
        if not ranges:
            return
        if self.durable:
            await self._session.execute(c.Acknowledge(self._source.name, self.name, ranges))
        else:
            check_within(ranges, await self._source.end_offset())
        self.progress.acked(ranges)
