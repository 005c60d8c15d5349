"""Retention: moves the start of logs, and deletes the bytes below the start.

An ordinary truncation moves the start at once. The background deletes the bytes below the start entry by
entry, in short commits. Records that queues still need stay, and are checked again later (`sparse`).
Retention by age uses the append times of records, never the timestamps of producers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Dropped, Head, LogTruncated, Touched
from millstream.log.model.producer import ProducerState
from millstream.log.model.users import passed, pinned
from millstream.log.reading.damage import gone as lost
from millstream.log.reading.reader import RowMoved, entries_of
from millstream.log.rules.ancestry import release
from millstream.log.rules.sparse import Needed, Sweep, bytes_below, payloads_of, rows_of, thin
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

HEADS_PER_PASS = 500
ENTRIES_PER_CUT = 1_000
ENTRIES_PER_SLICE = 64
PAYLOADS_PER_SLICE = 500
TRIES = 8
"""The number of tries while other callers truncate the same log."""

REST_S = 5.0
"""The backoff of a log in which nothing could be deleted, while others are written."""


class Rest(NamedTuple):
    """A check that deleted nothing. The next check comes after `until_s`, once something was committed."""

    start: int
    deleted: bool
    as_of: tuple[int, int]
    """The sequences of the last commit and the last fold before the check."""
    until_s: float


class LogUpkeep:
    """Applies retention to the logs of a store, some hundreds per call."""

    def __init__(self) -> None:
        self._positions: dict[int, bytes] = {}
        self._sweeps: dict[int, Sweep] = {}
        self._rests: dict[int, Rest] = {}

    def __call__(self, store: Store) -> bool:
        """Apply retention to the next logs; return True if a log has more work now."""
        idle = store.view(self._idle_producers)
        if idle:
            store.run(lambda tx: _forget_producers(tx, idle))
        has_more, damage = False, None
        for log_id in store.view(self._next_heads):
            if store.is_closing:
                break
            try:
                has_more = self._tend(store, log_id) or has_more
            except CorruptionError as error:
                damage = error
        if damage is not None:
            raise damage
        return has_more

    def _tend(self, store: Store, log_id: int) -> bool:
        forget(store, log_id)
        backoff = store.view(lambda view: self._rest(view, log_id))
        if backoff is None:
            return False
        if store.run(lambda tx: _drop_slice(tx, log_id)):
            return True
        if self._sweeps.setdefault(log_id, Sweep(log_id)).step(store):
            return True
        self._sweeps.pop(log_id, None)
        self._rests[log_id] = backoff
        return False

    def _rest(self, view: View, log_id: int) -> Rest | None:
        """Return the backoff to note if nothing can be deleted; None if the log needs no try."""
        head = view.entity(keys.head(log_id), Head)
        state = view.state
        now_s, as_of = state.clock.seconds(), (state.seq, state.folded)
        last = self._rests.get(log_id)
        is_unchanged = last is not None and last[:2] == (head.start, head.deleted)
        if last is not None and is_unchanged and (last.as_of == as_of or now_s < last.until_s):
            return None
        if not head.wants_dropping() and not head.kept:
            self._rests.pop(log_id, None)
            return None
        return Rest(head.start, head.deleted, as_of, now_s + REST_S)

    def _next_heads(self, view: View) -> list[int]:
        page = self._next_page(view, keys.HEAD)
        return [keys.number(key) for key in page if _wants(view.entity(key, Head))]

    def _idle_producers(self, view: View) -> list[bytes]:
        _, now_ms = view.state.time.now()
        page = self._next_page(view, keys.PRODUCER)
        return [key for key in page if view.entity(key, ProducerState).idle(now_ms)]

    def _next_page(self, view: View, kind: int) -> list[bytes]:
        """Return the next page of entities of a type, starting over after the last page."""
        first, stop = keys.range_of(keys.prefix(kind))
        page = view.find(self._positions.get(kind, first), stop, limit=HEADS_PER_PASS)
        self._positions[kind] = first if len(page) < HEADS_PER_PASS else keys.successor(page[-1])
        return page


def _forget_producers(tx: WriteTransaction, idle: list[bytes]) -> None:
    for key in idle:
        if tx.entity(key, ProducerState).idle(tx.store_ms):
            tx.change(key, None)


def _wants(head: Head) -> bool:
    return bool(head.retention) or head.wants_dropping() or head.kept > 0


def tend(store: Store, log_id: int) -> bool:
    """Apply the retention of a log and delete a slice of its bytes; return True if more remains."""
    forget(store, log_id)
    if store.run(lambda tx: _drop_slice(tx, log_id)):
        return True
    sweep = Sweep(log_id)
    while sweep.step(store):
        pass
    return False


def forget(store: Store, log_id: int) -> int:
    """Move the start of a log as far as its retention allows; return the number of forgotten records."""
    for _ in range(TRIES):
        planned = plan_start(store, log_id, partial(_facts, log_id=log_id))
        if planned is None:
            return 0
        head, start = planned
        gone = store.run(partial(_forget, log_id=log_id, head=head, start=start))
        if gone:
            return gone
    return 0


def plan_start(
    store: Store, log_id: int, find_facts: Callable[[View], tuple[Head, int | None] | None]
) -> tuple[Head, int] | None:
    """Return the head of a log and its later start by retention; None if the start stays.

    `find_facts` returns the head with the rules, and the lowest offset of the log's readers; None if
    the start stays. It is asked again after another process has deleted entries.
    """
    for tried in range(TRIES):
        facts = store.view(find_facts)
        if facts is None:
            return None
        head, floor = facts
        try:
            start = cut(store, log_id, head, floor=floor, now_ms=store.clock.wall_ms())
        except RowMoved as moved:
            if tried + 1 == TRIES:
                raise lost(head.name, head.start, moved.stop) from None
            continue
        return (head, start) if start > head.start else None
    return None


def _forget(tx: WriteTransaction, *, log_id: int, head: Head, start: int) -> int:
    """Move the start of a log; return the number of records that it passed.

    Return 0 and change nothing if the log differs from `head`: the caller computes `start` again.
    """
    current = tx.entity(keys.head(log_id), Head)
    if current.deleted or (current.start, current.dropped) != (head.start, head.dropped):
        return 0
    if current.retention != head.retention or start > current.end:
        return 0
    tx.change(keys.head(log_id), LogTruncated(start))
    tx.change(keys.head(log_id), Touched(tx.wall_ms))
    return start - head.start


def _facts(view: View, *, log_id: int) -> tuple[Head, int | None] | None:
    """Return the head of a log, and the lowest offset of its readers for retention by consumption."""
    head = view.entity(keys.head(log_id), Head)
    if not head.retention or head.deleted:
        return None
    floors = passed(view, log_id) if head.retention.consumed else []
    return replace(head), min(floors, default=None)


def cursors_passed(view: View, log_id: int) -> list[int]:
    """Return the first unacknowledged offset of each durable cursor of a log."""
    head = view.entity(keys.head(log_id), Head)
    cursors = view.find_all(*keys.range_of(keys.cursor(log_id, "")))
    states = (view.entity(key, CursorState) for key in cursors)
    return [int(cursor.marks.next_gap(head.start)[0]) for cursor in states]


def cut(store: Store, log_id: int, head: Head, *, floor: int | None, now_ms: int) -> int:
    """Return the new start of a log: the furthest start of its retention rules."""
    rules = head.retention
    start = head.start
    if rules.count is not None:
        start = max(start, head.end - rules.count)
    if rules.consumed and floor is not None:
        start = max(start, min(floor, head.end))
    with store.engine.read() as snapshot:
        view = store.rows(snapshot)
        if rules.age_ms is not None and start < head.end:
            oldest_ms = now_ms - rules.age_ms
            start = max(start, _cut_by_age(view, log_id, head, oldest_ms))
        excess = 0 if rules.bytes is None else head.bytes - head.kept - rules.bytes
        if excess > 0:
            start = max(start, _cut_by_bytes(view, log_id, head, excess))
    return start


def _cut_by_age(view: Rows, log_id: int, head: Head, oldest_ms: int) -> int:
    start = head.start
    numbered_entries = entries_of(view, log_id, start=start, stop=head.end)
    for _, (first, value) in zip(range(ENTRIES_PER_CUT), numbered_entries, strict=False):
        appended = entries.decode(value).appended
        old = bisect_left(appended, oldest_ms)
        start = max(start, first + old)
        if old < len(appended):
            break
    return start


def _cut_by_bytes(view: Rows, log_id: int, head: Head, excess: int) -> int:
    start = head.start
    rows = rows_of(view, log_id, head.dropped, head.end, ENTRIES_PER_CUT)
    excess += _kept_before(view, rows, head.dropped)
    for key, value in rows:
        if excess <= 0:
            break
        excess -= payloads_of(view, value)[1]
        start = max(start, keys.pair(key)[1] + 1)
    return start


def _kept_before(view: Rows, rows: list[Row], dropped: int) -> int:
    """Return the kept bytes of a first entry that reaches across `dropped`."""
    if not rows or entries.extent(*rows[0])[0] >= dropped:
        return 0
    return bytes_below(view, rows[0], dropped)


def _drop_slice(tx: WriteTransaction, log_id: int) -> bool:
    """Delete unneeded records of a slice of entries below the start; return True if more remain."""
    key = keys.head(log_id)
    head = tx.entity(key, Head)
    if not head.exists() or not head.wants_dropping():
        return False
    tx.notice_folds()
    needed = Needed(pinned(tx.view, log_id))
    end = min(head.start, needed.floor)
    if end <= head.dropped and not head.deleted:
        return False
    done = _thin_some(tx, log_id, head.dropped, end, needed)
    over = head.deleted and done.through >= head.end and not head.kept + done.kept
    if over and not release(tx, log_id):
        tx.change(key, None)
        return False
    if done.through > head.dropped:
        tx.change(key, Dropped(done.through, (done.gone, done.kept) if done.kept else done.gone))
    return done.more or over


class _Thinned(NamedTuple):
    """The result of a slice."""

    through: int
    """Entries below this offset were processed."""
    gone: int
    """The number of deleted bytes."""
    kept: int
    """The growth of the kept bytes below `through`."""
    more: bool


def _thin_some(tx: WriteTransaction, log_id: int, start: int, end: int, needed: Needed) -> _Thinned:
    """Delete unneeded records of the entries between `start` and `end`."""
    rows = rows_of(tx.view, log_id, start, end, ENTRIES_PER_SLICE)
    kept_more = -_kept_before(tx.view, rows, start)
    through, gone, payloads, done = start, 0, 0, 0
    for row in rows:
        if payloads >= PAYLOADS_PER_SLICE:
            break
        first, through = entries.extent(*row)
        cut = thin(tx, row, needed)
        cut.apply(tx)
        gone += cut.size - cut.left
        kept_more += cut.left
        done += 1
        payloads += needed.count(first, through) + 1
    has_more = done < len(rows) or done == ENTRIES_PER_SLICE
    if not has_more and through < end:
        through = max(through, _begin_across(tx, log_id, end))
    return _Thinned(through, gone, kept_more, has_more)


def _begin_across(tx: WriteTransaction, log_id: int, end: int) -> int:
    """Return the start of an entry that reaches across an end, or the end without such an entry."""
    _, last = keys.of_log(keys.ENTRY, log_id)
    near = tx.scan(keys.entry(log_id, end), last, limit=1)
    return min([end, *(entries.extent(*row)[0] for row in near)])
