"""Search in a log: records by key, by a filter over headers, and by time of append.

A log has no index for these. A search reads keys and headers, and the values of matching records.
One request scans a bounded number of records and returns where to continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.errors import InvalidInput
from millstream.filters import parse
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import NUMBER_MAX
from millstream.record import Record
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import get_log
from millstream.server.rest.payload import Position, ReadRecord, Timestamp, show_record
from millstream.server.rest.records import read_blocks

FOUND_MAX = 1_000
SCANNED_MAX = 50_000
"""Most records scanned by a request."""

STEP = 2_000
"""Records per read of keys and headers."""

PIECE = 16
"""Most neighbouring records whose values are read together: the answer may fill up earlier."""

Matcher = Callable[[Record], bool]


class SearchQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The range, the conditions and the order of a search."""

    start: Position | None = None
    """The first offset; default: the log's start."""
    stop: Position | None = None
    """Search up to this offset, exclusive."""
    since: Timestamp | None = None
    """Appended at this time or later, in milliseconds since the epoch."""
    until: Timestamp | None = None
    """Appended before this time, in milliseconds since the epoch."""
    key: Annotated[str, Meta(max_length=10_000)] | None = None
    """The key of the records, as text."""
    where: Annotated[str, Meta(max_length=10_000)] | None = None
    """A filter over headers, such as `amount > 100`."""
    order: Literal["oldest", "newest"] = "oldest"
    """Whether the oldest or the newest records come first."""
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 100


class FoundPage(Struct, kw_only=True):
    """The records that a search has found so far."""

    records: list[ReadRecord]
    next: int | None
    """Pass this as `start`, or as `stop` with `order=newest`; null: the search is complete."""
    scanned: int
    """How many records were scanned."""
    start_offset: int
    end_offset: int


endpoint = Endpoints("records")


@endpoint("GET /logs/{log}/search", errors=(404, 410))
async def search_records(ask: Ask, log: str, query: SearchQuery) -> FoundPage:
    """Find records by key, by a filter over headers, and by time of append.

    One request scans up to 50,000 records and answers about 4 MiB; continue at `next`.
    """
    matches = _matcher(query)
    start, end = await ask.execute(c.GetBounds(log))
    if not end:
        await get_log(ask, log)  # raises if the log does not exist
    low = start if query.start is None else min(max(start, query.start), end)
    high = end if query.stop is None else max(low, min(query.stop, end))
    if query.since is not None:
        low = await _first_at(ask, log, query.since, low, high)
    if query.until is not None:
        high = await _first_at(ask, log, query.until, low, high)
    search = _Search(ask, log, query, matches)
    following = await search.run(low, high)
    return FoundPage(
        records=search.records,
        next=following,
        scanned=search.scanned,
        start_offset=start,
        end_offset=end,
    )


def _matcher(query: SearchQuery) -> Matcher | None:
    """Return a test of key and headers; None without conditions."""
    if query.key is None and not query.where:
        return None
    try:
        key = None if query.key is None else query.key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("'key' is not valid Unicode") from error
    condition = parse(query.where) if query.where else None

    def matches(record: Record) -> bool:
        if key is not None and record.key != key:
            return False
        return condition is None or condition.matches(
            record.headers,
            record.key,
            record.timestamp,
            record.log,
            has_value=record.value is not None,
        )

    return matches


class _Search:
    """The search of one request, a range at a time."""

    def __init__(self, ask: Ask, log: str, query: SearchQuery, matches: Matcher | None) -> None:
        self.records: list[ReadRecord] = []
        self.scanned = 0
        self._ask = ask
        self._log = log
        self._query = query
        self._matches = matches
        self._bytes_left = ask.limits.read_bytes_max

    async def run(self, low: int, high: int) -> int | None:
        """Search [low, high); return the offset to continue from, None at the end."""
        is_back = self._query.order == "newest"
        while low < high and self.scanned < SCANNED_MAX and not self._is_full():
            start, stop = (max(low, high - STEP), high) if is_back else (low, min(high, low + STEP))
            for first, behind in _pieces(await self._offsets(start, stop), is_back=is_back):
                if self._is_full():
                    return behind if is_back else first
                ended_at = await self._read(first, behind, is_back=is_back)
                if ended_at is not None:
                    return ended_at
            self.scanned += stop - start
            low, high = (low, start) if is_back else (stop, high)
        if low >= high:
            return None
        return high if is_back else low

    def _is_full(self) -> bool:
        return len(self.records) == self._query.limit or self._bytes_left <= 0

    async def _offsets(self, start: int, stop: int) -> list[int]:
        """Return the offsets of the matching records in a range."""
        if self._matches is None:
            return list(range(start, stop))
        offsets: list[int] = []
        while start < stop:
            command = c.ReadBlocks(self._log, start, stop, NUMBER_MAX, values=False)
            blocks = await self._ask.execute(command)
            if not blocks:
                break  # truncated or deleted meanwhile
            offsets += await asyncio.to_thread(_matching, blocks, self._matches)
            start = blocks[-1].offsets.stop
        return offsets

    async def _read(self, first: int, behind: int, *, is_back: bool) -> int | None:
        """Read the values of matching neighbours.

        Returns the offset to continue from if the answer is full before their end.
        """
        records: list[Record] = []
        while first < behind:
            blocks = await read_blocks(self._ask, self._log, first, behind)
            if not blocks:
                break  # truncated or deleted meanwhile
            records += [record for block in blocks for record in block.records()]
            first = records[-1].offset + 1
        for record in reversed(records) if is_back else records:
            if self._is_full():
                return record.offset + 1 if is_back else record.offset
            self.records.append(show_record(record))
            self._bytes_left -= len(record.value or b"")
        return None


def _matching(blocks: list[RecordBlock], matches: Matcher) -> list[int]:
    return [record.offset for block in blocks for record in block.bare_records() if matches(record)]


def _pieces(offsets: list[int], *, is_back: bool) -> list[tuple[int, int]]:
    """Join neighbouring offsets into short ranges, in the order of the answer."""
    pieces: list[tuple[int, int]] = []
    for offset in offsets:
        if pieces and pieces[-1][1] == offset and offset - pieces[-1][0] < PIECE:
            pieces[-1] = (pieces[-1][0], offset + 1)
        else:
            pieces.append((offset, offset + 1))
    return pieces[::-1] if is_back else pieces


async def _first_at(ask: Ask, log: str, time_ms: int, low: int, high: int) -> int:
    """Find the first record that was appended at a time or later, by bisection; else the end."""
    while low < high:
        middle = (low + high) // 2
        command = c.ReadBlocks(log, middle, middle + 1, 0, values=False)
        blocks = await ask.execute(command)
        if blocks and blocks[0].appended()[0] < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
