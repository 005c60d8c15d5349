"""Moving records from a fork to its parent: entries change hands, payloads stay where they are.

A fork's records below its fork point lie in its parent. If the fork's first own records become the
parent's next records, and the fork point moves up behind them, neither log reads differently. Only
the rows of the entries are copied.
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.format.lineage import Fork
from millstream.log.model.head import Dropped, Head, LogTruncated, RecordsAppended
from millstream.log.rules.ancestry import forget_marks, put_fork
from millstream.log.rules.sparse import bytes_below, payloads_of, rows_of
from millstream.store.commit.transaction import WriteTransaction

ENTRIES_PER_SLICE = 1_000
BYTES_PER_SLICE = 8 * 1024 * 1024
"""Bytes of entries, without payloads, in a single commit."""


def raise_point(tx: WriteTransaction, log_id: int, fork: Fork) -> int:
    """Give the first own records of a fork to its parent, and return their number.

    The parent ends at the fork point. If the fork has forgotten its first own records, the parent
    then begins behind them.
    """
    tx.notice_folds()
    head = tx.entity(keys.head(log_id), Head)
    rows = rows_of(
        tx.view,
        log_id,
        max(fork.point, head.dropped),
        head.end,
        ENTRIES_PER_SLICE,
    )
    first = entries.extent(*rows[0])[0] if rows else head.end
    if not rows and head.start < head.end:
        raise CorruptionError(
            f"log {head.name!r}: its own records are missing", what="log entry", where=fork.point
        )
    if first > fork.point:
        forget_marks(tx, fork.parent_id)
        tx.change(keys.head(fork.parent_id), LogTruncated(first))
    moved = size = bytes_kept = carried = 0
    for key, value in rows:
        offset, stop = entries.extent(key, value)
        if carried >= BYTES_PER_SLICE or offset != first + moved:
            break
        if offset < head.dropped:
            bytes_kept += bytes_below(tx.view, (key, value), head.dropped)
        tx.drop(key)
        tx.put(keys.entry(fork.parent_id, stop - 1), value)
        size += payloads_of(tx.view, value)[1]
        moved = stop - first
        carried += len(value)
    if moved:
        tx.change(keys.head(fork.parent_id), RecordsAppended(moved, size, tx.wall_ms))
        tx.change(
            keys.head(log_id), Dropped(head.dropped, (size, -bytes_kept) if bytes_kept else size)
        )
    put_fork(tx, log_id, fork._replace(point=first + moved))
    return moved
