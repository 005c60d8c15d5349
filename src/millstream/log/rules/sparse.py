"""Sparse logs: below what was dropped, a log holds what queues still need, and little besides.

An entry that no queue or fork needs goes, whatever lies before it. One of which fewer than a quarter of the
messages are needed is replaced by singles, under the same offsets and ids: one failed message does
not hold a thousand. Each step is one commit, so what is needed is there at every moment.

The fold joins neighbouring singles, also across the offset up to which a log was dropped. Such an entry
is left alone until the log is dropped further; until then only a part of it counts as kept.
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
"""An entry is replaced once fewer than one in so many of its messages are needed,"""
SINGLES_MAX = 2_000
"""and no more than these: they are written in one commit."""

ENTRIES_PER_STEP = 64
PAYLOADS_PER_STEP = 500


class Needed:
    """The offsets of a log that a queue or a fork needs."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.floor = min((start for start, stop in ranges if stop == NO_END), default=NO_END)
        """From here on everything is needed."""
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
        """How many offsets in [start, stop) are needed."""
        return self._below(stop) - self._below(start)

    def offsets(self, start: int, stop: int) -> list[int]:
        """Which offsets in [start, stop) are needed."""
        found: list[int] = []
        at = max(0, bisect_right(self._starts, start) - 1)
        for low, high in self.ranges[at : bisect_left(self._starts, stop)]:
            found += range(max(low, start), min(high, stop))
        return found

    def _below(self, offset: int) -> int:
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return 0
        low, high = self.ranges[at]
        return self._before[at] + min(offset, high) - low


class Cut(NamedTuple):
    """What became of an entry."""

    size: int
    """Bytes that it counted for before,"""
    left: int
    """and those of what is left of it."""
    over: list[bytes]
    """The rows that have to go: its own, then payloads; none if it stays as it is."""
    again: list[Row]
    """The rows to be written afterwards: one of them may take the place of the entry."""

    def apply(self, tx: WriteTransaction) -> None:
        """Let it be so."""
        for key in self.over:
            tx.drop(key)
        for row in self.again:
            tx.put(*row)


def is_sparse(first: int, value: bytes, needed: Needed) -> bool:
    """Whether so little of an entry is needed that the rest shall go."""
    total = entries.count(value)
    live = needed.count(first, first + total)
    return live * LIVE_DIVISOR < total and live <= SINGLES_MAX


def thin(tx: WriteTransaction, row: Row, needed: Needed) -> Cut:
    """What becomes of an entry: if little of it is needed, that is written again, as singles."""
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
        except CorruptionError:  # damaged, and the doctor's: nothing of it is touched
            return Cut(size, size, [], [])
    left = sum(len(one) for _, one in puts) - len(offsets) * entries.SINGLE_HEAD_BYTES
    return Cut(size, left, [key, *payloads], puts)


def _singles(
    tx: WriteTransaction, log_id: int, first: int, value: bytes, offsets: list[int]
) -> list[Row]:
    """The rows of some messages of a block, as if each had been appended alone."""
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
    """One look at everything that a log keeps below what was dropped, in bounded steps."""

    def __init__(self, log_id: int) -> None:
        self._log_id = log_id
        self._position = 0
        self._needed: Needed | None = None

    def step(self, store: Store) -> bool:
        """Look at some entries and delete what is not needed; True if there are more."""
        dropped = store.view(self._begin)
        if not dropped:
            return False
        assert self._needed is not None
        sparse, payloads = [], 0
        with store.engine.read() as snapshot:
            view = store.rows(snapshot)
            rows = rows_of(view, self._log_id, self._position, dropped, ENTRIES_PER_STEP)
            more = len(rows) == ENTRIES_PER_STEP
            for key, value in rows:
                first, self._position = entries.extent(key, value)
                if is_sparse(first, value, self._needed):
                    sparse.append(key)
                    payloads += self._position - first
                    if payloads >= PAYLOADS_PER_STEP:
                        more = True
                        break
        if sparse:
            store.run(lambda tx: self._let_go(tx, sparse))
        return more

    def _begin(self, view: View) -> int:
        """How far the log was dropped, 0 if nothing is kept below; what is needed is collected once."""
        head = view.entity(keys.head(self._log_id), Head)
        if not head.kept:
            return 0
        if self._needed is None:
            self._needed = Needed(pinned(view, self._log_id))
        return head.dropped

    def _let_go(self, tx: WriteTransaction, found: list[bytes]) -> None:
        """Thin what is still sparse: meanwhile a message may have been given another claim id."""
        key = keys.head(self._log_id)
        head = tx.entity(key, Head)
        if not head.exists():
            return
        tx.notice_folds()
        needed = Needed(pinned(tx.view, self._log_id))
        gone = 0
        for row_key in found:
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
    """Entries with start <= last offset < stop, wherever they lie, in order.

    The first may have begun before the start. One that reaches across the stop is not among them.
    """
    return view.scan(keys.entry(log_id, start), keys.entry(log_id, stop), limit=limit)


def bytes_below(view: Rows, row: Row, offset: int) -> int:
    """What the records of joined singles count for that lie below an offset."""
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
    """Where an entry's payloads lie, and how many bytes entry and payloads count for."""
    if blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        return [keys.payload_block(header.first_id)], header.log_bytes
    key = keys.payload(entries.single_id(value))
    return [key], len(value) - entries.SINGLE_HEAD_BYTES + len(view.get(key) or b"")
