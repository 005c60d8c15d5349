"""Retention: what a log may forget, and the deletion of what it has forgotten.

The start of a log moves at once, by an ordinary truncation. The bytes below it go in the background,
whole entries at a time, in slices of one short commit each. Rules look at when records were
appended, never at timestamps that producers chose.
"""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.cursor_state import CursorState
from millstream.log.head import Dropped, Head, Truncated
from millstream.log.producer import ProducerState
from millstream.log.reader import entries_of
from millstream.store.engine import Row, Snapshot
from millstream.store.overlay import Overlay
from millstream.store.state import State
from millstream.store.store import Store
from millstream.store.transaction import Transaction

HEADS_PER_PASS = 500
ENTRIES_PER_CUT = 1_000
ENTRIES_PER_SLICE = 64
PAYLOADS_PER_SLICE = 500
CURSORS_MAX = 10_000


class LogUpkeep:
    """Goes round the logs of a store, some hundreds per call, and lets them forget."""

    def __init__(self) -> None:
        self._position = keys.prefix(keys.HEAD)
        self._producer = keys.prefix(keys.PRODUCER)

    def __call__(self, store: Store) -> bool:
        """Look after the next logs; True if one of them has more to do right now."""
        idle = store.look(self._idle_producers)
        if idle:
            store.run(lambda tx: _forget_producers(tx, idle))
        found = store.look(self._next_heads)
        return sum(tend(store, log_id) for log_id in found) > 0

    def _next_heads(self, state: State, snapshot: Snapshot) -> list[int]:
        first = keys.prefix(keys.HEAD)
        page = state.find(self._position, keys.after(first), snapshot, limit=HEADS_PER_PASS)
        self._position = first if len(page) < HEADS_PER_PASS else page[-1] + b"\x00"
        return [keys.number(key) for key in page if _wants(state.entity(key, snapshot))]

    def _idle_producers(self, state: State, snapshot: Snapshot) -> list[bytes]:
        first = keys.prefix(keys.PRODUCER)
        page = state.find(self._producer, keys.after(first), snapshot, limit=HEADS_PER_PASS)
        self._producer = first if len(page) < HEADS_PER_PASS else page[-1] + b"\x00"
        _, now_ms = state.time.now()
        return [key for key in page if _is_idle(state.entity(key, snapshot), now_ms)]


def _is_idle(producer: object, now_ms: int) -> bool:
    return isinstance(producer, ProducerState) and producer.idle(now_ms)


def _forget_producers(tx: Transaction, idle: list[bytes]) -> None:
    for key in idle:
        if tx.entity(key, ProducerState).idle(tx.store_ms):
            tx.change(key, None)


def _wants(head: object) -> bool:
    return isinstance(head, Head) and (bool(head.retention) or head.wants_dropping())


def tend(store: Store, log_id: int) -> bool:
    """Let a log forget, and delete some of what it has forgotten; True if more is left."""
    forget(store, log_id)
    return store.run(lambda tx: _drop_slice(tx, log_id))


def forget(store: Store, log_id: int) -> int:
    """Move a log's start as far as its retention allows; answers how many records went."""
    found = store.look(lambda state, snapshot: _facts(state, snapshot, log_id))
    if found is None:
        return 0
    head, floor = found
    start = cut(store, log_id, head, floor=floor, now_ms=store.clock.wall_ms())
    if start <= head.start:
        return 0

    def operation(tx: Transaction) -> int:
        current = tx.entity(keys.head(log_id), Head)
        if current.deleted or not current.start < start <= current.end:
            return 0
        gone = start - current.start
        tx.change(keys.head(log_id), Truncated(start))
        return gone

    return store.run(operation)


def _facts(state: State, snapshot: Snapshot, log_id: int) -> tuple[Head, int | None] | None:
    """A log's head, and the lowest floor of its cursors where that counts."""
    head = state.entity(keys.head(log_id), snapshot)
    assert isinstance(head, Head)
    if not head.retention or head.deleted:
        return None
    floors = []
    if head.retention.consumed:
        start, stop = keys.range_of(keys.cursor(log_id, ""))
        for key in state.find(start, stop, snapshot, limit=CURSORS_MAX):
            cursor = state.entity(key, snapshot)
            assert isinstance(cursor, CursorState)
            floors.append(int(cursor.marks.next_gap(head.start)[0]))
    return replace(head), min(floors, default=None)


def cut(store: Store, log_id: int, head: Head, *, floor: int | None, now_ms: int) -> int:
    """The start that retention allows: the furthest of its rules."""
    rules = head.retention
    start = head.start
    if rules.count is not None:
        start = max(start, head.end - rules.count)
    if rules.consumed and floor is not None:
        start = max(start, min(floor, head.end))
    with store.engine.read() as snapshot:
        if rules.age_ms is not None and start < head.end:
            oldest_ms = now_ms - rules.age_ms
            start = max(start, _cut_by_age(store.state.overlay, snapshot, log_id, head, oldest_ms))
        if rules.bytes is not None and head.bytes > rules.bytes:
            excess = head.bytes - rules.bytes
            start = max(start, _cut_by_bytes(store.state.overlay, snapshot, log_id, head, excess))
    return start


def _cut_by_age(
    overlay: Overlay, snapshot: Snapshot, log_id: int, head: Head, oldest_ms: int
) -> int:
    start = head.start
    found = entries_of(overlay, snapshot, log_id, start=start, stop=head.end)
    for _, (first, value) in zip(range(ENTRIES_PER_CUT), found, strict=False):
        appended = entries.decode(value).appended
        old = bisect_left(appended, oldest_ms)
        start = max(start, first + old)
        if old < len(appended):
            break
    return start


def _cut_by_bytes(
    overlay: Overlay, snapshot: Snapshot, log_id: int, head: Head, excess: int
) -> int:
    start = head.start
    for key, value in _rows(overlay, snapshot, log_id, head.dropped, head.end, ENTRIES_PER_CUT):
        if excess <= 0:
            break
        excess -= _payloads(overlay, snapshot, value)[1]
        start = max(start, keys.entry_position(key)[1] + entries.count(value))
    return start


def _drop_slice(tx: Transaction, log_id: int) -> bool:
    """Delete the bytes of some entries that lie below the start; True if more are left."""
    key = keys.head(log_id)
    head = tx.entity(key, Head)
    if not head.exists() or not head.wants_dropping():
        return False
    tx.state.folded_through(tx.writer.first_seq() - 1)
    overlay, limit = tx.state.overlay, ENTRIES_PER_SLICE
    pinned = tx.state.pinned(log_id, tx.writer)
    end = head.start if pinned is None else min(head.start, pinned)
    if end <= head.dropped and not (head.deleted and pinned is None):
        return False
    rows = _rows(overlay, tx.writer, log_id, head.dropped, end, limit)
    through, size, more = end, 0, len(rows) == limit
    gone: list[bytes] = []
    for row_key, value in rows:
        first = keys.entry_position(row_key)[1]
        through = first
        if first + entries.count(value) > end:
            more = False
            break
        if len(gone) >= PAYLOADS_PER_SLICE:
            more = True
            break
        found, bytes_found = _payloads(overlay, tx.writer, value)
        gone += found
        size += bytes_found
        through = first + entries.count(value)
    else:
        through = through if more else end
    if through > head.dropped:
        tx.drop(keys.entry(log_id, head.dropped), keys.entry(log_id, through))
        for payload_key in gone:
            tx.drop(payload_key)
    if head.deleted and through >= head.end:
        tx.change(key, None)
    elif through > head.dropped:
        tx.change(key, Dropped(through, size))
    return more


def _rows(
    overlay: Overlay, snapshot: Snapshot, log_id: int, start: int, stop: int, limit: int
) -> list[Row]:
    """Entries with start <= first offset < stop, wherever they lie, in order."""
    low, high = keys.entry(log_id, start), keys.entry(log_id, stop)
    rows = dict(snapshot.scan(low, high, limit=limit))
    for key in overlay.keys(low, high)[:limit]:
        held = overlay.get(key)
        if held is not None:
            rows[key] = held
    return sorted(rows.items())[:limit]


def _payloads(overlay: Overlay, snapshot: Snapshot, value: bytes) -> tuple[list[bytes], int]:
    """Where an entry's payloads lie, and how many bytes entry and payloads count for."""
    if blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        return [keys.payload_block(header.first_id)], header.body_bytes + header.payload_bytes
    found = [keys.payload(message_id) for message_id in entries.decode(value).ids]
    size = len(value) - entries.ARRAY_HEAD_BYTES - entries.ELEMENT_HEAD_BYTES * len(found)
    for key in found:
        held = overlay.get(key)
        size += len(snapshot.get(key) or b"") if held is None else len(held)
    return found, size
