"""Searching a log: records by key, by a filter over headers, and by when they were appended.

A log has no index of these: a search reads keys and headers, and the values of what it found. One
request looks at a bounded number of records, and says where to go on.
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
"""Records that one request looks at."""

STEP = 2_000
"""Records that are looked at in one read."""

PIECE = 16
"""Neighbours whose values are read together: the answer may be full after the first of them."""

Wanted = Callable[[Record], bool]


class SearchQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which records."""

    start: Position | None = None
    """The first offset; without one, the first record that is there."""
    stop: Position | None = None
    """Before this offset."""
    since: Timestamp | None = None
    """Appended at this time or later: milliseconds since the epoch."""
    until: Timestamp | None = None
    """Appended before this time: milliseconds since the epoch."""
    key: Annotated[str, Meta(max_length=10_000)] | None = None
    """Records of this key, as text."""
    where: Annotated[str, Meta(max_length=10_000)] | None = None
    """A filter over headers, such as `amount > 100`."""
    order: Literal["oldest", "newest"] = "oldest"
    """Which come first."""
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = 100


class FoundPage(Struct, kw_only=True):
    """What a search has found so far."""

    records: list[ReadRecord]
    next: int | None
    """Ask with this as `start`, or as `stop` if the newest come first; null: that is all."""
    scanned: int
    """How many records were looked at."""
    start_offset: int
    end_offset: int


endpoint = Endpoints("records")


@endpoint("GET /logs/{log}/search", errors=(404, 410))
async def search_records(ask: Ask, log: str, query: SearchQuery) -> FoundPage:
    """Find records by key, by a filter over headers, and by when they were appended.

    One answer looks at up to 50,000 records and holds about 4 MiB; go on at `next`.
    """
    wanted = _wanted(query)
    start, end = await ask.execute(c.GetBounds(log))
    if not end:
        await get_log(ask, log)  # not found, if there is none
    low = start if query.start is None else min(max(start, query.start), end)
    high = end if query.stop is None else max(low, min(query.stop, end))
    if query.since is not None:
        low = await _first_at(ask, log, query.since, low, high)
    if query.until is not None:
        high = await _first_at(ask, log, query.until, low, high)
    search = _Search(ask, log, query, wanted)
    following = await search.run(low, high)
    return FoundPage(
        records=search.found,
        next=following,
        scanned=search.scanned,
        start_offset=start,
        end_offset=end,
    )


def _wanted(query: SearchQuery) -> Wanted | None:
    """Whether a record is looked for, by what is known without its value; None if all are."""
    if query.key is None and not query.where:
        return None
    try:
        key = None if query.key is None else query.key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("'key' is not valid Unicode") from error
    condition = parse(query.where) if query.where else None

    def wanted(one: Record) -> bool:
        if key is not None and one.key != key:
            return False
        return condition is None or condition.matches(
            one.headers, one.key, one.timestamp, one.log, has_value=one.value is not None
        )

    return wanted


class _Search:
    """One request's search, a stretch at a time."""

    def __init__(self, ask: Ask, log: str, query: SearchQuery, wanted: Wanted | None) -> None:
        self.found: list[ReadRecord] = []
        self.scanned = 0
        self._ask = ask
        self._log = log
        self._query = query
        self._wanted = wanted
        self._bytes_left = ask.limits.read_bytes_max

    async def run(self, low: int, high: int) -> int | None:
        """Look through [low, high); the offset to go on from, None if nothing is left."""
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
        return len(self.found) == self._query.limit or self._bytes_left <= 0

    async def _offsets(self, start: int, stop: int) -> list[int]:
        """Of a stretch, the offsets of the records that are looked for."""
        if self._wanted is None:
            return list(range(start, stop))
        found: list[int] = []
        while start < stop:
            command = c.ReadBlocks(self._log, start, stop, NUMBER_MAX, values=False)
            blocks = await self._ask.execute(command)
            if not blocks:
                break  # truncated or deleted meanwhile
            found += await asyncio.to_thread(_matching, blocks, self._wanted)
            start = blocks[-1].offsets.stop
        return found

    async def _read(self, first: int, behind: int, *, is_back: bool) -> int | None:
        """Read neighbours that were found; where to go on, if the answer is full before their end."""
        records: list[Record] = []
        while first < behind:
            blocks = await read_blocks(self._ask, self._log, first, behind)
            if not blocks:
                break  # truncated or deleted meanwhile
            records += [one for block in blocks for one in block.records()]
            first = records[-1].offset + 1
        for one in reversed(records) if is_back else records:
            if self._is_full():
                return one.offset + 1 if is_back else one.offset
            self.found.append(show_record(one))
            self._bytes_left -= len(one.value or b"")
        return None


def _matching(blocks: list[RecordBlock], wanted: Wanted) -> list[int]:
    return [one.offset for block in blocks for one in block.bare_records() if wanted(one)]


def _pieces(offsets: list[int], *, is_back: bool) -> list[tuple[int, int]]:
    """Neighbouring offsets as short ranges, in the order in which they are shown."""
    pieces: list[tuple[int, int]] = []
    for offset in offsets:
        if pieces and pieces[-1][1] == offset and offset - pieces[-1][0] < PIECE:
            pieces[-1] = (pieces[-1][0], offset + 1)
        else:
            pieces.append((offset, offset + 1))
    return pieces[::-1] if is_back else pieces


async def _first_at(ask: Ask, log: str, time_ms: int, low: int, high: int) -> int:
    """The first record of a range that was appended at a time or later, or its end; by halving."""
    while low < high:
        middle = (low + high) // 2
        command = c.ReadBlocks(log, middle, middle + 1, 0, values=False)
        blocks = await ask.execute(command)
        if blocks and blocks[0].appended()[0] < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
