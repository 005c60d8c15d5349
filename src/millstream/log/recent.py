"""Recent blocks: the parsed blocks that consumers are working through.

Messages are claimed a few at a time from blocks of many; a block is read, checked and parsed once,
not once per claim. Blocks never change and ids of logs are never reused, so nothing here goes stale, unless
a log is set back: then what was read before is not looked at again.
What a claim gets is cut and decoded for it alone: nobody sees what another does to headers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from millstream.format import block as blocks
from millstream.log.block import Block, headers_at, headers_of
from millstream.log.reader import bounds_of, fetch_blocks
from millstream.record import Headers
from millstream.store.store import Store

BLOCKS_KEPT = 16
BYTES_KEPT_MAX = 16 * 1024 * 1024
OFFSETS_BYTES = 16
"""What a parsed block keeps per record beside its bytes: offsets of value, key and headers."""

_KEY = "recent blocks"

Row = tuple[int, bytes, int, bytes | None, Headers]
"""Offset, value, timestamp, key, headers."""


class Columns(NamedTuple):
    """Neighbouring records of a log, column by column."""

    offsets: range
    values: list[bytes]
    timestamps: Sequence[int]
    keys: list[bytes | None]
    headers: list[Headers]


class Parsed(NamedTuple):
    """A block of records, ready to be cut."""

    first: int
    end: int
    metadata: blocks.Block
    payload: blocks.Block
    size: int

    def row(self, offset: int) -> Row:
        """One of the records that it holds."""
        metadata, index = self.metadata, offset - self.first
        value = self.payload.cell(blocks.VALUE, index)
        assert value is not None
        headers = headers_at(metadata, index)
        return offset, value, metadata.timestamp(index), metadata.key(index), headers

    def columns(self, start: int, stop: int) -> Columns:
        """The records in [start, stop) of those it holds."""
        skip, count = start - self.first, stop - start
        metadata = self.metadata
        values = self.payload.column(blocks.VALUE, skip, count)
        assert values is not None
        return Columns(
            range(start, stop),
            values,
            metadata.timestamps(skip, count),
            metadata.keys(skip, count),
            headers_of(metadata, skip, count),
        )


class RecentBlocks:
    """A few parsed blocks, by log and first offset; the longest unused go first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, int], Parsed] = OrderedDict()
        self._last: dict[int, Parsed] = {}
        """Of each log, the block that was used last; the next claim mostly wants it again."""
        self._setbacks: dict[int, int] = {}
        """Of logs that were set back, how often."""
        self._lock = Lock()

    def note(self, log_id: int, setbacks: int) -> None:
        """Forget the blocks of a log that was set back since."""
        if not setbacks or self._setbacks.get(log_id) == setbacks:
            return
        with self._lock:
            self._setbacks[log_id] = setbacks
            self._last.pop(log_id, None)
            for key in [key for key in self._found if key[0] == log_id]:
                del self._found[key]

    def find(self, log_id: int, offset: int) -> Parsed | None:
        """The block that holds a record, if it is remembered."""
        last = self._last.get(log_id)
        if last is not None and last.first <= offset < last.end:
            return last
        with self._lock:
            for key, parsed in reversed(self._found.items()):
                if key[0] == log_id and parsed.first <= offset < parsed.end:
                    self._found.move_to_end(key)
                    self._last[log_id] = parsed
                    return parsed
        return None

    def add(self, log_id: int, block: Block) -> Parsed:
        """Parse a block that was read, and remember it."""
        # Its rows were checked just now, when they were read.
        metadata = blocks.Block(block.metadata, kind=blocks.METADATA, trusted=True)
        payload = blocks.Block(block.payload, kind=blocks.PAYLOAD, trusted=True)
        first, count = block.first_offset - block.skip, metadata.count
        size = len(block.metadata) + len(block.payload) + OFFSETS_BYTES * count
        parsed = Parsed(first, first + count, metadata, payload, size)
        with self._lock:
            self._found[log_id, first] = self._last[log_id] = parsed
            self._shrink()
        return parsed

    def _shrink(self) -> None:
        """Forget blocks until the others fit; the newest stays, whatever its size."""
        size = sum(parsed.size for parsed in self._found.values())
        while len(self._found) > 1 and (len(self._found) > BLOCKS_KEPT or size > BYTES_KEPT_MAX):
            (log_id, _), gone = self._found.popitem(last=False)
            size -= gone.size
            if self._last.get(log_id) is gone:
                del self._last[log_id]


def recent_columns(
    store: Store, log_id: int, name: str, *, start: int, stop: int
) -> Iterator[Columns]:
    """The records in [start, stop) of a log, also below its start while their bytes are there."""
    known: RecentBlocks | None = store.scratch.get(_KEY)
    cache = known or store.scratch.setdefault(_KEY, RecentBlocks())
    cache.note(log_id, bounds_of(store, log_id).setbacks)
    while start < stop:
        parsed = cache.find(log_id, start)
        if parsed is not None:
            found = [parsed]
        else:
            read = fetch_blocks(store, log_id, name, start=start, stop=stop)
            found = [cache.add(log_id, block) for block in read]
        for parsed in found:
            end = min(stop, parsed.end)
            yield parsed.columns(start, end)
            start = end


def recent_row(store: Store, log_id: int, offset: int) -> Row | None:
    """One record, if its block is at hand."""
    cache: RecentBlocks | None = store.scratch.get(_KEY)
    if cache is None:
        return None
    cache.note(log_id, bounds_of(store, log_id).setbacks)
    parsed = cache.find(log_id, offset)
    return None if parsed is None else parsed.row(offset)


def is_at_hand(store: Store, log_id: int, *, start: int, stop: int) -> bool:
    """Whether `recent_columns` has no block to read for these records."""
    cache: RecentBlocks | None = store.scratch.get(_KEY)
    while cache is not None and start < stop:
        parsed = cache.find(log_id, start)
        if parsed is None:
            return False
        start = parsed.end
    return cache is not None


def recent_rows(store: Store, log_id: int, name: str, *, start: int, stop: int) -> Iterator[Row]:
    """As `recent_columns`, row by row."""
    for some in recent_columns(store, log_id, name, start=start, stop=stop):
        yield from zip(*some, strict=True)
