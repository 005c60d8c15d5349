"""Moving records between a log and its fork: entries change hands, payloads stay where they are.

A fork's records below its fork point lie in its parent. If the fork's first own records become the
parent's next records, and the fork point moves up behind them, neither log reads differently. The
same holds in the other direction for the parent's tail. Only the rows of the entries are copied.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.format.lineage import Fork
from millstream.log.model.head import Dropped, EndSetBack, Head, LogTruncated, RecordsAppended
from millstream.log.rules.ancestry import forget_marks, note_set_back, put_fork
from millstream.log.rules.sparse import bytes_below, payloads_of, rows_of
from millstream.store.commit.transaction import WriteTransaction

ENTRIES_PER_SLICE = 1_000
BYTES_PER_SLICE = 8 * 1024 * 1024
"""Bytes of entries, without payloads, in a single commit."""

ENTRIES_MAX = 2**31


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


def lower_end(tx: WriteTransaction, from_id: int, to_id: int, at: int) -> None:
    """Give a log's own records from `at` on to a log that has no records there."""
    tx.notice_folds()
    head = tx.entity(keys.head(from_id), Head)
    gone = came = 0
    for key, value in rows_of(tx.view, from_id, at, head.end, ENTRIES_MAX):
        offset, stop = entries.extent(key, value)
        size = payloads_of(tx.view, value)[1]
        gone += size
        tx.drop(key)
        if offset >= at:
            tx.put(keys.entry(to_id, stop - 1), value)
            came += size
            continue
        halves = split(tx, value, at - offset)
        for row in halves.payloads:
            tx.drop(row[0])
            tx.put(*row)
        tx.put(keys.entry(from_id, at - 1), halves.head)
        tx.put(keys.entry(to_id, stop - 1), halves.tail)
        gone -= halves.head_size
        came += halves.tail_size
    tx.change(keys.head(from_id), EndSetBack(at, gone))
    note_set_back(tx, from_id, head.setbacks, at)
    tx.change(keys.head(to_id), Dropped(tx.entity(keys.head(to_id), Head).dropped, -came))


class Halves(NamedTuple):
    """A block in two, and the rows of their payloads."""

    head: bytes
    head_size: int
    tail: bytes
    tail_size: int
    payloads: list[Row]


def split(tx: WriteTransaction, value: bytes, count: int) -> Halves:
    """Cut a block behind its first `count` records."""
    head, tail = entries.head_of(value, count), entries.tail_of(value, count)
    header = blocks.decode_header(value, kind=blocks.METADATA)
    stored = tx.get(keys.payload_block(header.first_id))
    if stored is None:
        raise CorruptionError("a payload is missing", what="payload", where=header.first_id)
    rows: list[Row] = []
    halves: list[tuple[bytes, int]] = []
    for half, start in ((head, 0), (tail, count)):
        metadata, payload = entries.with_payload(
            half, stored, start, singly=bool(header.counted_bytes)
        )
        first_id = blocks.decode_header(metadata, kind=blocks.METADATA).first_id
        rows.append((keys.payload_block(first_id), payload))
        halves.append((metadata, payloads_of(tx.view, metadata)[1]))
    return Halves(*halves[0], *halves[1], rows)
