"""Marks of logs as rows: the running hash of a log at the ends of its pieces.

A log has marks once it was synced, or its chain was asked for. The last mark at or below the log's
start is its anchor, or base: the bytes from there on are kept, so that the hash can be computed
again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from millstream.format import keys
from millstream.format.lineage import MARKS_PER_ROW, decode_marks, encode_marks
from millstream.log.model.head import Head
from millstream.log.model.users import NO_END
from millstream.replica.chain import Mark
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

ROWS_PER_STEP = 8
ROWS_PER_ERASURE = 1_000
ROWS_PER_PRUNING = 64


def read_marks(view: View, log_id: int, *, start: int = 0) -> Iterator[Mark]:
    """Yield the marks of a log from an offset on, ascending."""
    _, stop = keys.of_log(keys.MARKS, log_id)
    position = keys.marks(log_id, start)
    while rows := view.scan(position, stop, limit=ROWS_PER_STEP):
        for _, value in rows:
            for offset, digest in decode_marks(value):
                if offset >= start:
                    yield Mark(offset, digest)
        position = keys.successor(rows[-1][0])


def mark_at(view: View, log_id: int, offset: int) -> Mark | None:
    """Return the last mark at or below an offset."""
    _, stop = keys.of_log(keys.MARKS, log_id)
    marks = [
        mark
        for _, value in view.scan(keys.marks(log_id, offset), stop, limit=1)
        for mark in decode_marks(value)
    ]
    at = bisect_left(marks, offset + 1, key=lambda mark: mark[0])
    return Mark(*marks[at - 1]) if at else None


def last_mark(view: View, log_id: int) -> Mark | None:
    """Return the last mark of a log; None without a chain."""
    return mark_at(view, log_id, NO_END)


def add_marks(tx: WriteTransaction, log_id: int, marks: list[Mark]) -> None:
    """Write marks behind the last mark. The newest row is rewritten; a full row gets its final key."""
    row = tx.get(keys.marks(log_id, NO_END))
    all_marks = [] if row is None else decode_marks(row)
    all_marks += [(mark.offset, mark.digest) for mark in marks]
    for first in range(0, len(all_marks), MARKS_PER_ROW):
        row_marks, after = (
            all_marks[first : first + MARKS_PER_ROW],
            all_marks[first + MARKS_PER_ROW :],
        )
        last = after[0][0] - 1 if after else NO_END
        tx.put(keys.marks(log_id, last), encode_marks(row_marks))


def begin_marks(tx: WriteTransaction, log_id: int, base: Mark) -> None:
    """Replace all marks by a new one, including marks that the running operation wrote."""
    start, stop = keys.of_log(keys.MARKS, log_id)
    while rows := tx.scan(start, stop, limit=ROWS_PER_ERASURE):
        for key, _ in rows:
            tx.erase(key)
    tx.put(keys.marks(log_id, NO_END), encode_marks([(base.offset, base.digest)]))


def prune_marks(tx: WriteTransaction, log_id: int, anchor: int) -> None:
    """Drop rows that lie wholly below the anchor, up to a limit; the next call continues."""
    start, _ = keys.of_log(keys.MARKS, log_id)
    tx.drop_some(start, keys.marks(log_id, anchor), limit=ROWS_PER_PRUNING)


def pin(view: View, log_id: int) -> list[tuple[int, int]]:
    """Return the range that a log with a chain keeps: from its anchor on."""
    head = view.entity(keys.head(log_id), Head)
    if head.deleted or not head.exists():
        return []
    anchor = mark_at(view, log_id, head.start)
    if anchor is None:
        anchor = next(read_marks(view, log_id), None)
    return [] if anchor is None else [(anchor.offset, NO_END)]
