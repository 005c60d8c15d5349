"""Staging for coroutines: append now, commit later, as `millstream.log.stage`, awaited."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from millstream.aio.cursor import Cursor, Source, open_cursor
from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.format.packing import Single, pack_single
from millstream.log import commands as c
from millstream.log.stage import batch_of, is_full, staged_record
from millstream.record import Extent, Headers, Record, Seconds


async def open_stage(session: AsyncSession, log: Source, *, section: int) -> Stage:
    """Hold a log exclusively, from its end on."""
    if section < 1:
        raise InvalidInput(f"a section has at least one record, not {section}")
    token = secrets.token_hex(8)
    end = await session.execute(c.TakeLog(log.name, token))
    return Stage(session, log, section=section, token=token, end=end)


class Stage:
    """Records that are readable here, and durable at the next commit."""

    def __init__(
        self, session: AsyncSession, log: Source, *, section: int, token: str, end: int
    ) -> None:
        self.name = log.name
        self._session = session
        self._log = log
        self._section = section
        self._token = token
        self._committed = end
        self._records: list[Single] = []
        self._bytes = 0
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.commit()
        finally:
            await self.close()

    async def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Stage one record and return the offset that it will have."""
        record = pack_single(
            value,
            key=key,
            headers=headers,
            timestamp=self._session.clock.wall_ms() if timestamp is None else timestamp,
            limits=self._session.limits,
        )
        self._records.append(record)
        offset = self._committed + len(self._records) - 1
        self._bytes += len(record.value) + len(record.headers)
        if is_full(offset, self._bytes, section=self._section, limits=self._session.limits):
            await self.commit()
        return offset

    async def commit(self) -> int:
        """Make what is staged durable and visible to all; answers the end of the log."""
        # A cancelled caller leaves the commit running: the handle must know how it ended.
        return await asyncio.shield(asyncio.ensure_future(self._commit()))

    async def discard(self) -> int:
        """Drop what is staged; answers how many records went."""
        async with self._changing:
            gone = len(self._records)
            self._records, self._bytes = [], 0
            return gone

    async def close(self) -> None:
        """Drop what is staged and let others append again."""
        await self.discard()
        await self._session.execute(c.FreeLog(self.name, self._token))

    async def get(self, offset: int) -> Record | None:
        """The record at an offset, staged or committed."""
        if offset >= await self.end_offset():
            return None
        return await anext(self.read(offset, offset + 1), None)

    async def read(
        self, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[Record]:
        """The records in [start, stop), those that are staged included."""
        position = await self.start_offset() if start is None else start
        committed, records = self._committed, list(self._records)
        end = committed + len(records)
        stop = end if stop is None else min(stop, end)
        if position < committed:
            async for record in self._log.read(position, min(stop, committed)):
                yield record
        for offset in range(max(position, committed), stop):
            yield staged_record(self.name, offset, records[offset - committed])

    async def start_offset(self) -> int:
        """The offset of the first record that is there."""
        return await self._log.start_offset()

    async def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._committed + len(self._records)

    async def extent(self, known: int = 0) -> Extent:
        """Both ends; those of a log that is held do not go back."""
        extent = await self._log.extent(known)
        return Extent(extent.start, await self.end_offset(), extent.setbacks, extent.set_back_to)

    async def wait(
        self, offset: int, *, timeout: Seconds | None = None, setbacks: int | None = None
    ) -> bool:
        """Whether there is a record at the offset: nobody else can add one meanwhile."""
        return await self.end_offset() > offset

    async def cursor(
        self,
        name: str,
        *,
        durable: bool = False,
        start: int | str = "earliest",
        section: int | None = None,
    ) -> Cursor:
        """A cursor that sees staged records as well."""
        return await open_cursor(
            self._session,
            self,
            name,
            durable=durable,
            start=start,
            section=section or self._section,
        )

    async def _commit(self) -> int:
        async with self._changing:
            count = len(self._records)
            if count:
                records = self._records[0] if count == 1 else batch_of(self._records)
                await self._session.execute(
                    c.Append(self.name, records, expect_end=self._committed, token=self._token)
                )
                self._committed += count
                del self._records[:count]
                self._bytes = sum(len(one.value) + len(one.headers) for one in self._records)
            return self._committed
