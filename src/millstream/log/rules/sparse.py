"""Sparse logs: deletes the unneeded entries below `dropped`, where queues and forks need few records.

An entry without needed records is deleted. An entry of which fewer than a quarter of the records are
needed is replaced by single entries with the same offsets and ids, so that a failed message does not
keep a thousand others. A step is one commit, so needed records always exist.

The fold joins contiguous single entries, even across `dropped`. Such an entry stays until `dropped`
moves on; until then the bytes of its records below `dropped` count as kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.head import Dropped, Head
from millstream.log.model.users import NO_END, pinned
from millstream.log.rules.ancestry import release
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

LIVE_DIVISOR = 4
"""Rewrite an entry as single records when fewer than 1/4 of its messages are needed."""
SINGLES_MAX = 2_000
"""The most records that are rewritten in one commit."""

ENTRIES_PER_STEP = 64
PAYLOADS_PER_STEP = 500


class Needed:
    """The offsets of a log that a queue or a fork needs."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.floor = min((start for start, stop in ranges if stop == NO_END), default=NO_END)
        """All records from this offset on are needed."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self.ranges = merged
        self._starts = [start for start, _ in merged]
        self._before = list(accumulate((stop - start for start, stop in merged), initial=0))

    def count(self, start: int, stop: int) -> int:
        """Return the number of needed offsets in [start, stop)."""
        return self._below(stop) - self._below(start)

    def offsets(self, start: int, stop: int) -> list[int]:
        """Return the needed offsets in [start, stop)."""
        needed: list[int] = []
        at = max(0, bisect_right(self._starts, start) - 1)
        for low, high in self.ranges[at : bisect_left(self._starts, stop)]:
            needed += range(max(low, start), min(high, stop))
        return needed

    def _below(self, offset: int) -> int:
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return 0
        low, high = self.ranges[at]
        return self._before[at] + min(offset, high) - low


class Cut(NamedTuple):
    """The rows to delete and to write for an entry."""

    size: int
    """The size of the entry."""
    left: int
    """The size of the remaining records."""
    over: list[bytes]
    """The keys to delete, of the entry and its payloads; empty if the entry stays."""
    again: list[Row]
    """The rows to write after the deletion; a row may replace the entry."""

    def apply(self, tx: WriteTransaction) -> None:
        """Delete and write the rows."""
        for key in self.over:
            tx.drop(key)
        for row in self.again:
            tx.put(*row)


def is_sparse(first: int, value: bytes, needed: Needed) -> bool:
    """Return whether an entry has so few needed records that it should be rewritten."""
    total = entries.count(value)
    live = needed.count(first, first + total)
    return live * LIVE_DIVISOR < total and live <= SINGLES_MAX


def thin(tx: WriteTransaction, row: Row, needed: Needed) -> Cut:
    """Plan the rewrite of an entry with few needed records as single entries."""
    key, value = row
    first, stop = entries.extent(key, value)
    payloads, size = payloads_of(tx.view, value)
    if not is_sparse(first, value, needed):
        return Cut(size, size, [], [])
    offsets = needed.offsets(first, stop)
    puts: list[Row] = []
    if offsets:
        try:
            puts = _singles(tx, keys.pair(key)[0], first, value, offsets)
        except CorruptionError:  # leave a damaged entry to the doctor
            return Cut(size, size, [], [])
    remaining = (
        sum(len(row_value) for _, row_value in puts) - len(offsets) * entries.SINGLE_HEAD_BYTES
    )
    return Cut(size, remaining, [key, *payloads], puts)


def _singles(
    tx: WriteTransaction, log_id: int, first: int, value: bytes, offsets: list[int]
) -> list[Row]:
    """Return the rows of messages of a block as single entries."""
    entry = entries.decode(value)
    payloads = blocks.Block(_found(tx, keys.payload_block(entry.ids[0])), kind=blocks.PAYLOAD)
    rows = []
    for offset in offsets:
        index = offset - first
        payload = payloads.cell(blocks.VALUE, index)
        assert payload is not None
        metadata = entries.encode_metadata(
            key=entry.keys[index],
            timestamp_ms=entry.timestamps[index],
            headers=entry.headers[index],
            appended_ms=entry.appended[index],
            is_null=entry.is_null(index),
        )
        rows.append((keys.payload(entry.ids[index]), payload))
        rows.append((keys.entry(log_id, offset), entries.encode_single(entry.ids[index], metadata)))
    return rows


def _found(tx: WriteTransaction, key: bytes) -> bytes:
    value = tx.get(key)
    if value is None:
        raise CorruptionError("a payload is missing", what="payload", where=key.hex())
    return value


class Sweep:
    """A pass over the entries of a log below `dropped`, in bounded steps."""

    def __init__(self, log_id: int) -> None:
        self._log_id = log_id
        self._position = 0
        self._needed: Needed | None = None

    def step(self, store: Store) -> bool:
        """Rewrite sparse entries of the next page; return True if has_more pages follow."""
        dropped = store.view(self._begin)
        if not dropped:
            return False
        assert self._needed is not None
        sparse, payloads = [], 0
        with store.engine.read() as snapshot:
            view = store.rows(snapshot)
            rows = rows_of(view, self._log_id, self._position, dropped, ENTRIES_PER_STEP)
            has_more = len(rows) == ENTRIES_PER_STEP
            for key, value in rows:
                first, self._position = entries.extent(key, value)
                if is_sparse(first, value, self._needed):
                    sparse.append(key)
                    payloads += self._position - first
                    if payloads >= PAYLOADS_PER_STEP:
                        has_more = True
                        break
        if sparse:
            store.run(lambda tx: self._let_go(tx, sparse))
        return has_more

    def _begin(self, view: View) -> int:
        """Return `dropped`, or 0 without kept entries; collect the needed offsets at the first call."""
        head = view.entity(keys.head(self._log_id), Head)
        if not head.kept:
            return 0
        if self._needed is None:
            self._needed = Needed(pinned(view, self._log_id))
        return head.dropped

    def _let_go(self, tx: WriteTransaction, row_keys: list[bytes]) -> None:
        """Rewrite the entries that are still sparse, since needs may have changed meanwhile."""
        key = keys.head(self._log_id)
        head = tx.entity(key, Head)
        if not head.exists():
            return
        tx.notice_folds()
        needed = Needed(pinned(tx.view, self._log_id))
        gone = 0
        for row_key in row_keys:
            value = tx.get(row_key)
            if value is not None:
                cut = thin(tx, (row_key, value), needed)
                gone += cut.size - cut.left
                cut.apply(tx)
        over = head.deleted and head.dropped >= head.end and gone == head.kept
        if over and not release(tx, self._log_id):
            tx.change(key, None)
        elif gone:
            tx.change(key, Dropped(head.dropped, (gone, -gone)))


def rows_of(view: Rows, log_id: int, start: int, stop: int, limit: int) -> list[Row]:
    """Return the entries with start <= last offset < stop, in order.

    The first entry may begin before the start. An entry that reaches across the stop is not included.
    """
    return view.scan(keys.entry(log_id, start), keys.entry(log_id, stop), limit=limit)


def bytes_below(view: Rows, row: Row, offset: int) -> int:
    """Return the size of the records below an offset in an entry of joined singles."""
    key, value = row
    first, stop = entries.extent(key, value)
    count = min(offset, stop) - first
    if count <= 0 or not blocks.is_block(value):
        return 0
    header = blocks.decode_header(value, kind=blocks.METADATA)
    if not header.counted_bytes:
        return 0
    size = sum(len(metadata) for _, metadata in entries.metadata_of(value)[:count])
    payload = view.get(keys.payload_block(header.first_id))
    cells = (
        None if payload is None else blocks.Block(payload, kind=blocks.PAYLOAD).cells(blocks.VALUE)
    )
    return size if cells is None else size + cells.ends[count]


def payloads_of(view: Rows, value: bytes) -> tuple[list[bytes], int]:
    """Return the keys of the payloads of an entry, and the size of the entry with its payloads."""
    if blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        return [keys.payload_block(header.first_id)], header.log_bytes
    key = keys.payload(entries.single_id(value))
    return [key], len(value) - entries.SINGLE_HEAD_BYTES + len(view.get(key) or b"")
