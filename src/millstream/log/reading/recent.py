"""Recent blocks: the parsed blocks that consumers are working through.

Messages are claimed a few at a time from blocks of many; a block is read, checked and parsed once,
not once per claim. Blocks never change and ids of logs are never reused, so nothing here goes stale, unless
a log is set back: then what was read before is not looked at again.
What a claim gets is cut for it alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from itertools import chain
from threading import Lock
from typing import NamedTuple

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.block import RecordBlock, packed_headers_of, picked_headers_of
from millstream.log.reading.reader import bounds_of, fetch_blocks
from millstream.store.state.overlay import Overlay
from millstream.store.store import Store

BYTES_KEPT_MAX = 16 * 1024 * 1024
"""A queue with priorities comes back to each block once per priority: what is kept is not read again."""

PARSED_BYTES = 3_500
"""What a parsed block takes whatever it holds, as measured: it bounds the number of small ones."""

OVERLAPS_MAX = 4
"""Blocks that begin before a record and are asked for it: those that were read apart may overlap."""

OFFSETS_BYTES = 16
"""What a parsed block keeps per record beside its bytes: offsets of value, key and headers."""

ROWS_AHEAD = 32
"""Small records are cut so many at a time for consumers that take them one by one."""

ROWS_HELD = 128
"""Single records that are made one block while they are unfolded."""

ROWS_AHEAD_BYTES = 64 * 1024

_ARRAY_OF_ONE = b"\x91"


NEAR = 16
"""Records that are not wanted and are read all the same, between two that are."""


class Columns(NamedTuple):
    """Records of a log in order, mostly neighbours, column by column."""

    offsets: range | list[int]
    values: list[bytes | None]
    timestamps: int | list[int]
    """One for all, or one for each."""
    keys: list[bytes | None] | None
    """None if none has one."""
    packed_headers: bytes
    """A MessagePack array with a map for each; nothing if none has any."""


class ParsedBlock:
    """A block of records, ready to be cut."""

    __slots__ = ("_ahead", "_next", "_rows", "end", "first", "metadata", "payload", "size")

    def __init__(self, first: int, metadata: blocks.Block, payload: blocks.Block) -> None:
        self.first = first
        self.end = first + metadata.count
        self.metadata = metadata
        self.payload = payload
        bodies = metadata.header.body_bytes + payload.header.body_bytes
        held = bodies + OFFSETS_BYTES * metadata.count
        self.size = held + PARSED_BYTES
        self._ahead = max(1, min(ROWS_AHEAD, ROWS_AHEAD_BYTES * metadata.count // held))
        self._rows: tuple[int, list[Columns]] = 0, []
        """Some records that were cut ahead, and the offset of the first of them."""
        self._next = -1
        """The offset that comes next if a consumer takes records one by one."""

    def columns(self, start: int, stop: int) -> Columns:
        """The records in [start, stop) of those it holds."""
        if stop - start == 1:
            return self._row(start)
        metadata, header = self.metadata, self.metadata.header
        skip, count = start - self.first, stop - start
        timestamps: int | list[int] | None = metadata.timestamp_ms()
        if timestamps is None:
            timestamps = list(metadata.timestamps(skip, count))
        return Columns(
            range(start, stop),
            blocks.nulled(
                self.payload.column(blocks.VALUE, skip, count) or [], metadata.valid(skip, count)
            ),
            timestamps,
            metadata.keys(skip, count) if header.columns & blocks.KEY else None,
            packed_headers_of(metadata, skip, count),
        )

    def picked(self, offsets: list[int]) -> Columns:
        """Some of the records that it holds, which need not be neighbours."""
        metadata, header, first = self.metadata, self.metadata.header, self.first
        indexes = [offset - first for offset in offsets]
        timestamps: int | list[int] | None = metadata.timestamp_ms()
        if timestamps is None:
            every = metadata.timestamps()
            timestamps = [every[index] for index in indexes]
        keys: list[bytes | None] | None = None
        if header.columns & blocks.KEY:
            all_keys = metadata.keys()
            keys = [all_keys[index] for index in indexes]
        cells, valid = self.payload.cells(blocks.VALUE), metadata.valid()
        picked = [] if cells is None else cells.pick(indexes)
        return Columns(
            offsets,
            blocks.nulled(picked, valid and [valid[index] for index in indexes]),
            timestamps,
            keys,
            picked_headers_of(metadata, indexes),
        )

    def _row(self, offset: int) -> Columns:
        """One record; for a consumer that takes them one by one, some are cut ahead."""
        first, rows = self._rows
        if not 0 <= offset - first < len(rows):
            count = self._ahead if offset == self._next else 1
            first, rows = offset, self.rows(offset, min(offset + count, self.end))
            self._rows, self._next = (first, rows), first + len(rows)
        return rows[offset - first]

    def rows(self, start: int, stop: int) -> list[Columns]:
        """The records in [start, stop) of those it holds, each by itself."""
        metadata, skip, count = self.metadata, start - self.first, stop - start
        headers = metadata.column(blocks.HEADERS, skip, count) or [b""] * count
        rows = zip(
            range(start, stop),
            blocks.nulled(
                self.payload.column(blocks.VALUE, skip, count) or [b""] * count,
                metadata.valid(skip, count),
            ),
            metadata.timestamps(skip, count),
            metadata.keys(skip, count),
            headers,
            strict=True,
        )
        return [
            Columns(
                range(offset, offset + 1),
                [value],
                timestamp,
                None if key is None else [key],
                _ARRAY_OF_ONE + maps if maps else b"",
            )
            for offset, value, timestamp, key, maps in rows
        ]


class RecentBlocks:
    """Parsed blocks, by log and first offset; the longest unused go first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, int], ParsedBlock] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        """Of each log, the first offsets of its blocks, sorted."""
        self._size = 0
        """Of all blocks."""
        self._last: dict[int, ParsedBlock] = {}
        """Of each log, the block that was used last; the next claim mostly wants it again."""
        self._setbacks: dict[int, int] = {}
        """Of logs that were set back, how often."""
        self._lock = Lock()

    def note(self, log_id: int, setbacks: int) -> None:
        """Forget the blocks of a log that was set back since."""
        if self._setbacks.get(log_id) == setbacks:
            return
        with self._lock:
            self._setbacks[log_id] = setbacks
            self._last.pop(log_id, None)
            for first in self._firsts.pop(log_id, ()):
                self._size -= self._found.pop((log_id, first)).size

    def find(self, log_id: int, offset: int) -> ParsedBlock | None:
        """The block that holds a record, if it is remembered."""
        last = self._last.get(log_id)
        if last is not None and last.first <= offset < last.end:
            return last
        with self._lock:
            firsts = self._firsts.get(log_id, [])
            stop = bisect_right(firsts, offset)
            for first in reversed(firsts[max(0, stop - OVERLAPS_MAX) : stop]):
                parsed = self._found[log_id, first]
                if offset < parsed.end:
                    self._found.move_to_end((log_id, first))
                    self._last[log_id] = parsed
                    return parsed
        return None

    def add(self, log_id: int, block: RecordBlock) -> ParsedBlock:
        """Parse a block that was read, and remember it."""
        # Its rows were checked just now, when they were read.
        metadata = blocks.Block(block.metadata, kind=blocks.METADATA, trusted=True)
        payload = blocks.Block(block.payload, kind=blocks.PAYLOAD, trusted=True)
        parsed = ParsedBlock(block.first_offset - block.skip, metadata, payload)
        key = log_id, parsed.first
        with self._lock:
            before = self._found.pop(key, None)
            if before is None:
                insort(self._firsts.setdefault(log_id, []), parsed.first)
            else:
                self._size -= before.size
            self._found[key] = self._last[log_id] = parsed
            self._size += parsed.size
            self._shrink()
        return parsed

    def _shrink(self) -> None:
        """Forget blocks until the others fit; the newest stays, whatever its size."""
        while len(self._found) > 1 and self._size > BYTES_KEPT_MAX:
            (log_id, first), gone = self._found.popitem(last=False)
            self._size -= gone.size
            firsts = self._firsts[log_id]
            del firsts[bisect_left(firsts, first)]
            if not firsts:
                del self._firsts[log_id]
            if self._last.get(log_id) is gone:
                del self._last[log_id]


def recent_columns(store: Store, log_id: int, name: str, *, start: int, stop: int) -> list[Columns]:
    """The records in [start, stop) of a log, also below its start while their bytes are there.

    Where damage begins, the answer ends; if that is at `start`, this raises.
    """
    if stop - start == 1:
        row = held_row(store.state.overlay, log_id, start)
        if row is not None:
            return [row]
    found = _pieces(store, log_id, name, start, stop)
    return [parsed.columns(first, end) for parsed, first, end in found]


def recent_row(store: Store, log_id: int, offset: int) -> Columns | None:
    """One record that is in memory; None if it has to be read, or cannot be."""
    try:
        row = held_row(store.state.overlay, log_id, offset)
    except CorruptionError:
        return None
    if row is not None:
        return row
    if bounds_of(store, log_id).setbacks:
        return None
    parsed = store.caches.of(RecentBlocks).find(log_id, offset)
    return None if parsed is None else parsed.columns(offset, offset + 1)


def recent_rows(store: Store, log_id: int, name: str, *, start: int, stop: int) -> list[Columns]:
    """The records in [start, stop) of a log as `recent_columns` gives them, each by itself."""
    found = _pieces(store, log_id, name, start, stop)
    return list(chain.from_iterable([parsed.rows(first, end) for parsed, first, end in found]))


def recent_scattered(store: Store, log_id: int, name: str, offsets: list[int]) -> list[Columns]:
    """Records of a log, in ascending order, that need not be neighbours; damage raises."""
    cache = store.caches.of(RecentBlocks)
    setbacks = bounds_of(store, log_id).setbacks
    if setbacks:
        cache.note(log_id, setbacks)
    found: list[Columns] = []
    at, count = 0, len(offsets)
    while at < count:
        parsed = cache.find(log_id, offsets[at])
        if parsed is None:
            near = at + 1
            while near < count and offsets[near] - offsets[near - 1] <= NEAR:
                near += 1
            start, stop = offsets[at], offsets[near - 1] + 1
            read = fetch_blocks(store, log_id, name, start=start, stop=stop)
            parsed, *_ = [cache.add(log_id, block) for block in read]
        end = bisect_left(offsets, parsed.end, at)
        found.append(parsed.picked(offsets[at:end]))
        at = end
    return found


def _pieces(
    store: Store, log_id: int, name: str, start: int, stop: int
) -> list[tuple[ParsedBlock, int, int]]:
    """Blocks that hold the records in [start, stop) of a log, and which to take from each.

    Blocks may overlap: those of records that were stored apart are made of what was asked for.
    """
    cache = store.caches.of(RecentBlocks)
    bounds = bounds_of(store, log_id)
    if bounds.setbacks:
        cache.note(log_id, bounds.setbacks)
    found: list[tuple[ParsedBlock, int, int]] = []
    while start < stop:
        parsed = cache.find(log_id, start)
        if parsed is not None:
            near = [parsed]
        else:
            behind = max(stop, min(bounds.end, _held_from(store, log_id, start)))
            try:
                read = fetch_blocks(store, log_id, name, start=start, stop=behind)
            except CorruptionError:
                if not found:
                    raise
                break
            near = [cache.add(log_id, block) for block in read]
        for parsed in near:
            if start < stop:
                end = min(stop, parsed.end)
                found.append((parsed, start, end))
                start = end
    return found


def held_row(held: Overlay, log_id: int, offset: int) -> Columns | None:
    """A record that was appended alone a moment ago, and lies in memory; None if it does not."""
    mark = held.mark()
    entry = held.get(keys.entry(log_id, offset))
    if entry is None or blocks.is_block(entry):
        return None
    payload = held.get(entries.payload_key(entry))
    if payload is None or not held.is_since(mark):
        return None
    key, timestamp_ms, headers, _, is_null = entries.single_metadata(entry)
    return Columns(
        range(offset, offset + 1),
        [None if is_null else payload],
        timestamp_ms,
        None if key is None else [key],
        _ARRAY_OF_ONE + headers if headers else b"",
    )


def _held_from(store: Store, log_id: int, start: int) -> int:
    """The end of some single records from `start` on that lie in memory.

    They are made one block, for the consumers that take what follows.
    """
    held = store.state.overlay.rows_from(keys.entry(log_id, start), limit=ROWS_HELD)
    are_single = held and keys.pair(held[-1][0])[1] == start + len(held) - 1
    return start + len(held) if are_single else start


def is_at_hand(store: Store, log_id: int, *, start: int, stop: int) -> bool:
    """Whether `recent_columns` has no block to read for these records."""
    cache = store.caches.of(RecentBlocks)
    while start < stop:
        parsed = cache.find(log_id, start)
        if parsed is None:
            return False
        start = parsed.end
    return True
