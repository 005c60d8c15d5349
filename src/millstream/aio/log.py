"""The log as coroutines hold it: a name and a session; every method is one command or a few."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, overload

from millstream.aio.any_log import AnyLog
from millstream.aio.cursor import Cursor, open_cursor
from millstream.aio.log_consumer import LogConsumer
from millstream.aio.metadata import Metadata
from millstream.aio.producer import LogProducer
from millstream.aio.runtime import Indexed
from millstream.aio.stage import Stage, open_stage
from millstream.command import AsyncSession
from millstream.errors import InvalidInput, OutOfRange, Truncated
from millstream.format.packing import Single, pack_many, pack_single
from millstream.header import HeadersLike
from millstream.limits import MESSAGE_ID_MAX
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import check_name
from millstream.log.progress import SECTION, OnLoss
from millstream.log.typed_records import decoder_of
from millstream.numbers import checked_numbers
from millstream.record import (
    CursorInfo,
    Extent,
    Merged,
    Owner,
    Producer,
    Record,
    Seconds,
    Time,
    optional_ms,
    time_ms_of,
)
from millstream.streaming.options import ProducerOptions, ProducerSettings

T = TypeVar("T")


@checked_numbers
class Log(AnyLog, Indexed):
    """Records at stable offsets: append at the end, read anywhere, forget from the front.

    The first append creates the log; before, reads find an empty log. The handle is a name and a
    session: it costs nothing, and needs no close. docs/LOGS.md explains logs and cursors.
    """

    def __init__(self, session: AsyncSession, name: str) -> None:
        super().__init__(session, check_name(name))

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    async def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
        expect_end: int | None = None,
        producer: Producer | None = None,
    ) -> int:
        """Add one record (bytes, text, a JSON value, or None for a tombstone) and return its offset.

        The record is durable on return. `key` (default: none) is for readers, partitions and groups;
        `headers` (none) are small named values; `timestamp` (the time of the append) is in milliseconds
        since the epoch. With `expect_end` the record is added only if the log ends there, else
        `EndMoved`. With `producer` a repeat of the same sequence stores nothing and returns the first
        offset.
        """
        session = self._session
        record = pack_single(
            value, key=key, headers=headers, timestamp=timestamp, limits=session.limits
        )
        return await session.execute(c.Append(self.name, record, expect_end, producer))

    async def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | int | None = None,
        expect_end: int | None = None,
        producer: Producer | None = None,
    ) -> range:
        """Add a batch as one block, all or nothing, and return its offsets as a range.

        `keys`, `headers` and `timestamps` (default: none) are columns beside the values; or hand in
        `Item`s. `expect_end` and `producer` hold for the batch, as in `append`.
        """
        session = self._session
        records = pack_many(
            values, keys=keys, headers=headers, timestamps=timestamps, limits=session.limits
        )
        if records is None:
            end = await self.end_offset()
            return range(end, end)
        first = await session.execute(c.Append(self.name, records, expect_end, producer))
        return range(first, first + (1 if isinstance(records, Single) else records.count))

    @overload
    async def get(self, offset: int) -> Record | None: ...
    @overload
    async def get(self, offset: int, *, type: type[T]) -> T | None: ...
    async def get(self, offset: int, *, type: Any = None) -> Any:
        """Return the record at an offset; None below the start and at or past the end.

        With `type` its value is decoded from JSON as a value of that type.
        """
        if not 0 <= offset <= MESSAGE_ID_MAX:
            return None
        try:
            blocks = await self._blocks(offset, offset + 1)
        except Truncated:
            return None
        if not blocks:
            return None
        record = blocks[0].records()[0]
        return record if type is None else decoder_of(type)(record)

    async def at(self, offset: int) -> Record:
        """Return the record at an offset; -1 is the newest record, -2 the record before it.

        Raises `OutOfRange` at or past the end and `Truncated` for a deleted record. `IndexError` is a
        base class of both errors.
        """
        position = offset
        if offset < 0:
            start, end = await self._bounds()
            position = end + offset if end + offset >= start else end
        if position <= MESSAGE_ID_MAX and (blocks := await self._blocks(position, position + 1)):
            return blocks[0].records()[0]
        start, end = await self._bounds()
        raise OutOfRange(
            f"log {self.name!r} has no record at {offset}: it has {end - start:,} records and ends at "
            f"{end}",
            position=offset,
            end=end,
        )

    async def first(self) -> Record | None:
        """The oldest record; None if the log is empty."""
        return await anext(self.read(), None)

    async def last(self) -> Record | None:
        """The newest record; None if the log is empty."""
        start, end = await self._bounds()
        return await self.get(end - 1) if end > start else None

    async def offset_at(self, time: Time) -> int:
        """Return the offset of the first record whose timestamp is at or after a time; else the end.

        The time is a `datetime` with a time zone, a `timedelta` for so long ago, or milliseconds since
        the epoch. A record without a timestamp of its own has the time of its append. Records behind
        the offset may have earlier timestamps, if producers set them.
        """
        return await self._session.execute(c.FindOffset(self.name, *time_ms_of(time)))

    @overload
    def read(
        self, start: int | None = None, stop: int | None = None, *, since: Time | None = None
    ) -> AsyncIterator[Record]: ...
    @overload
    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        type: type[T],
    ) -> AsyncIterator[T]: ...
    async def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        type: Any = None,
    ) -> AsyncIterator[Any]:
        """Yield the records in [start, stop) as of now; a few blocks are in memory at a time.

        `start` is an offset (default: the first record), and `stop` the offset behind the last one
        (default: the end). Negative numbers count from the end: `read(-10)` yields the last ten.
        `since` begins at a time instead, as `offset_at` finds it. A deleted `start` raises `Truncated`.

        With `type` the values are yielded instead of records: decoded from JSON as values of that type
        (a msgspec struct, a dataclass, a TypedDict), with its defaults for fields that a record lacks.
        A tombstone is None.
        """
        decode = None if type is None else decoder_of(type)
        async for block in self.read_blocks(start, stop, since=since):
            for record in block.records():
                yield record if decode is None else decode(record)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.read()

    async def read_blocks(
        self, start: int | None = None, stop: int | None = None, *, since: Time | None = None
    ) -> AsyncIterator[RecordBlock]:
        """Yield blocks of records as columns, for callers that need no record objects.

        `start`, `stop` and `since` are those of `read`.
        """
        first, end = await self._bounds()
        begin = position = await self._position(start, since, first, end)
        stop = end if stop is None else min(stop if stop >= 0 else end + stop, end)
        is_named = start is not None and start >= 0
        while position < stop:
            try:
                blocks = await self._blocks(position, stop)
            except Truncated as gone:
                if is_named or position > begin:
                    raise
                begin = position = gone.start  # the log has just forgotten its first records
                continue
            if not blocks:
                return  # the log was deleted meanwhile
            for block in blocks:
                yield block
                position = block.offsets.stop

    async def read_next(self, start: int, stop: int | None = None) -> AsyncIterator[Record]:
        """Yield the records from `start` on that fit into one answer; nothing if the log ends there.

        The records lie before `stop` (default: the end). A reader that follows a log saves a request:
        `read` asks for the ends of the log first. A deleted `start` raises `Truncated`.
        """
        for block in await self._blocks(start, MESSAGE_ID_MAX if stop is None else stop):
            for record in block.records():
                yield record

    @overload
    def tail(
        self,
        start: int | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[Record]: ...
    @overload
    def tail(
        self,
        start: int | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
        type: type[T],
    ) -> AsyncIterator[T]: ...
    async def tail(
        self,
        start: int | None = None,
        *,
        since: Time | None = None,
        timeout: Seconds | None = None,
        type: Any = None,
    ) -> AsyncIterator[Any]:
        """Yield records as they arrive, without end; or until no record came for `timeout`.

        Begins at the end; or at the offset `start`, where -10 yields the last ten first; or at a time,
        `since`, as `offset_at` finds it. `type` is that of `read`.
        """
        decode = None if type is None else decoder_of(type)
        first, end = await self._bounds()
        is_told = start is not None or since is not None
        position = await self._position(start, since, first, end) if is_told else end
        while await self.wait(position, timeout=timeout):
            async for record in self.read_next(position):
                yield record if decode is None else decode(record)
                position = record.offset + 1

    async def wait(self, offset: int, *, timeout: Seconds | None = None, log_id: int = 0) -> bool:
        """Wait until there is a record at the offset; False after `timeout` (default: no end).

        With `log_id`, which `extent` returns, also until the name stands for another log.
        """
        timeout_ms = optional_ms(timeout, "timeout")
        return await self._session.execute(c.WaitForOffset(self.name, offset, timeout_ms, log_id))

    async def extent(self, known: int = 0) -> Extent:
        """Return where the log begins and ends, its id, and its relation to the log of the id
        `known`."""
        return await self._session.execute(c.GetExtent(self.name, known))

    async def start_offset(self) -> int:
        """The offset of the first record that is there."""
        return (await self._bounds())[0]

    async def end_offset(self) -> int:
        """The offset that the next record will get."""
        return (await self._bounds())[1]

    async def len(self) -> int:
        """How many records are there."""
        start, end = await self._bounds()
        return end - start

    async def is_empty(self) -> bool:
        """Return True if the log holds no record, because records were never appended or are
        deleted."""
        start, end = await self._bounds()
        return start == end

    async def truncate(self, *, before: int, past_end: bool = False) -> int:
        """Forget the records before an offset and return how many went.

        Only ever forwards. An offset past the end is `OutOfRange`; with `past_end` both ends move
        there, and no record ever gets an offset in between.
        """
        if before < 0:
            raise InvalidInput(f"offsets begin at 0, not at {before}")
        return await self._session.execute(c.Truncate(self.name, before, past_end))

    @property
    def metadata(self) -> Metadata:
        """A small map of JSON values kept with the log."""
        return Metadata(self._session, self.name)

    async def cursor(
        self,
        name: str,
        *,
        durable: bool = True,
        start: int | str | datetime | timedelta = "earliest",
        section: int = SECTION,
        on_loss: OnLoss = "skip",
    ) -> Cursor:
        """Return the cursor of this name; make it at `start` if it does not exist.

        `start` is "earliest", "latest", an offset, a `datetime` with a time zone, or a `timedelta` for
        so long ago. With `durable=False` acknowledgements stay in memory, and `flush` stores them by
        sections of `section` records. If retention deletes records before the cursor read them, the
        cursor skips them, counts them (`info().lost`) and writes a line to the program's log; with
        `on_loss="raise"` the take raises `RecordsLost`.
        """
        return await open_cursor(
            self._session,
            self,
            name,
            durable=durable,
            start=start,
            section=section,
            on_loss=on_loss,
        )

    def consumer(
        self,
        name: str,
        *,
        prefetch: int = 256,
        auto_ack: bool = False,
        linger: Seconds = 0.005,
        timeout: Seconds | None = None,
        start: int | str | datetime | timedelta = "earliest",
        on_loss: OnLoss = "skip",
    ) -> LogConsumer:
        """A consumer, for `async with`, that yields the records after a cursor one by one.

        `name`, `start` and `on_loss` are those of `cursor`. Up to `prefetch` records are read ahead,
        and acknowledgements are stored in groups, after `linger` at the latest. With `auto_ack` a
        record is acknowledged when the loop asks for the next one. The loop ends by `stop`, or after
        `timeout` without a record.
        """
        return LogConsumer(
            self,
            self._session,
            name,
            prefetch=prefetch,
            auto_ack=auto_ack,
            linger=linger,
            timeout=timeout,
            start=start,
            on_loss=on_loss,
        )

    async def cursors(self) -> list[CursorInfo]:
        """List the cursors of the log with their positions."""
        return await self._session.execute(c.ListCursors(self.name))

    async def delete_cursor(self, name: str) -> bool:
        """Delete a cursor; False if it did not exist."""
        return await self._session.execute(c.DeleteCursor(self.name, check_name(name, "cursor")))

    def producer(self, **settings: Unpack[ProducerSettings]) -> LogProducer:
        """Return a producer, which appends single records at streaming speed.

        `async with log.producer() as producer` stores all records when the block ends. Records are
        gathered for `linger`, or while the records before them are stored. At `in_flight` records or
        `in_flight_bytes` that are not stored yet, a call waits, or raises `Overloaded` with
        `wait=False`. A failure that may pass is repeated for `retry_for`. A `name` fences the earlier
        producers of that name.
        """
        return LogProducer(self._session, self.name, ProducerOptions(**settings))

    async def stage(self, *, section: int = SECTION) -> Stage:
        """Hold the log exclusively, to append now and commit later.

        `async with await log.stage() as stage` commits what is staged when the block ends. A stage
        also commits by itself whenever a section of `section` records is full.
        """
        return await open_stage(self._session, self, section=section)

    async def fork(self, name: str | None = None) -> Log:
        """Create a log that begins with the records of this log; no bytes are copied.

        The fork holds the present records of this log and its own appends; the appends stay in the
        fork. Without `name` the store chooses a name.
        """
        if name is not None:
            check_name(name)
        return Log(self._session, await self._session.execute(c.ForkLog(self.name, name)))

    async def merge(self, *, on_fork: str = "refuse") -> Merged:
        """Bring the records of this fork into the log that it was forked from.

        If that has gone on meanwhile, `ForkDetected`; with `on_fork="rebase"` this fork's records are
        appended to it again, with `"longest"` those of the longer one count.
        """
        return await self._session.execute(c.MergeFork(self.name, on_fork))

    async def parent(self) -> str | None:
        """Return the name of the parent log; None for a log without a parent."""
        return await self._session.execute(c.GetParent(self.name))

    async def owner(self) -> Owner:
        """Which store may append to the log."""
        return await self._session.execute(c.GetOwner(self.name))

    async def hand_over(self, to: str) -> Owner:
        """Let the store of that id append from now on, and this one no longer."""
        return await self._session.execute(c.HandOver(self.name, check_name(to, "store")))

    async def take_over(self) -> Owner:
        """Become the owner of the log: this store appends from now on. A sync informs the previous
        owner."""
        return await self._session.execute(c.TakeOver(self.name))

    async def delete(self) -> bool:
        """Delete the log with cursors and metadata; False if the log did not exist."""
        return await self._session.execute(c.DeleteLog(self.name))

    async def _position(self, start: int | None, since: Time | None, first: int, end: int) -> int:
        """Return where reading begins in a log with these ends."""
        if since is not None:
            if start is not None:
                raise InvalidInput(
                    "reading begins at an offset, start, or at a time, since; not both"
                )
            return await self.offset_at(since)
        if start is None:
            return first
        return start if start >= 0 else max(first, end + start)

    async def _bounds(self) -> tuple[int, int]:
        return await self._session.execute(c.GetBounds(self.name))

    async def _blocks(self, start: int, stop: int) -> list[RecordBlock]:
        bytes_max = self._session.limits.read_bytes_max
        return await self._session.execute(c.ReadBlocks(self.name, start, stop, bytes_max))
