"""The upkeep of queues: the records they pin in logs, and the deletion of their own old messages.

A log keeps its bytes until every queue on it has routed them and finished the messages. Done
messages are forgotten after their retention (`aging`). Finished messages of an inbox are truncated
from it. A log with retention by consumption asks every queue for its finished position.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from millstream.errors import Conflict, Locked
from millstream.format import keys
from millstream.log.model.head import Head, LogTruncated, Name
from millstream.log.model.users import NO_END
from millstream.log.rules.sparse import LIVE_DIVISOR, Needed
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.own_logs import own_logs
from millstream.queue.model.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import forget, is_due
from millstream.queue.rules.dead_letter import send_owed
from millstream.queue.rules.endings import expire
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import all_queues, find_queue
from millstream.queue.rules.operations import delete_remains, has_remains
from millstream.queue.rules.sources import takes
from millstream.queue.service.backlog import route_some
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

_LOGGER = logging.getLogger("millstream.queue")

REST_S = 5.0
"""The time between two looks at an inbox while consumers are active."""

LETTERS_REST_S = 1.0
"""The time before dead letters are sent again to a log that refused them."""

LIVE_LOOKED_AT = 10_000
"""The most unfinished messages with which an inbox is always checked for truncation."""


Range = tuple[int, int]
"""A half-open range of offsets of a log."""


def pin(view: View, log_id: int) -> list[Range]:
    """Return the offsets of a log that queues still need; the end of a range may be `NO_END`."""
    return [
        needed_range
        for queue in all_queues(view)
        for needed_range in needed_by(view, queue, log_id)
    ]


def needed_by(view: View, queue: QueueState, log_id: int) -> list[Range]:
    """Return the offsets of a log that a queue needs: unrouted records and held messages."""
    head = view.entity(keys.head(log_id), Head)
    needed: list[Range] = []
    if goes_on_in(queue, head) and not queue.spec.lossy:
        needed.append((head.next_at(queue.positions.get(log_id, 0)), NO_END))
    if log_id in queue.positions:
        done = (DONE,) if queue.spec.keep_payloads else ()
        needed += _held(view, queue, log_id, (AVAILABLE, IN_FLIGHT, FAILED, *done))
    return needed


def _held(view: View, queue: QueueState, log_id: int, states: Iterable[int]) -> Iterator[Range]:
    """Yield the offsets of a log with messages in these states."""
    if DONE in states:
        bucket_keys: Iterable[bytes] = view.find_all(*keys.of_queue(keys.BUCKET, queue.queue_id))
    else:
        bucket_keys = [keys.bucket(queue.queue_id, bucket_id) for bucket_id in queue.alive]
    for key in bucket_keys:
        bucket = view.entity(key, Bucket)
        for state in states:
            for run in bucket.runs(state):
                for span in bucket.sources(*run):
                    if span.log_id == log_id:
                        yield span.offset, span.offset + span.count


def goes_on_in(queue: QueueState, head: Head) -> bool:
    """Return whether routing will continue in a log; a deleted log has no name that leads to it."""
    if head.deleted or not head.name:
        return False
    return takes(queue.name, queue.spec, head.name)


def queue_past(tx: WriteTransaction, log_id: int, offset: int) -> str | None:
    """Return the name of a queue that was routed beyond an offset, in words; None without one."""
    for queue in all_queues(tx.view):
        if queue.positions.get(log_id, 0) > offset:
            return f"queue {queue.name!r}"
    return None


def queues_passed(view: View, log_id: int) -> list[int]:
    """Return for each queue on a log the offset before which all records are done or failed.

    A failed message does not hold up the log: the queue pins its bytes as long as needed.
    """
    head = view.entity(keys.head(log_id), Head)
    floors = []
    for queue in all_queues(view):
        floor = NO_END
        if goes_on_in(queue, head):
            floor = max(queue.positions.get(log_id, 0), head.start)
        if floor > head.start and log_id in queue.positions:
            for start, stop in _held(view, queue, log_id, (AVAILABLE, IN_FLIGHT)):
                if stop > head.start:
                    floor = min(floor, max(start, head.start))
        if floor < NO_END:
            floors.append(floor)
    return floors


class QueueUpkeep:
    """Routes, takes back expired leases and deletes old done messages, queue by queue."""

    def __init__(self) -> None:
        self._rests: dict[str, tuple[tuple[int, int], float]] = {}
        """Queues → the last commit and fold at the last look at their inbox, and the time of the
        next.
        """
        self._owed: dict[str, float] = {}
        """Queues with owed dead letters → the time of the next try."""
        self._letters: dict[str, bytes] = {}
        """Queues with owed dead letters → the row at which the next try begins."""
        self._refused: dict[str, str] = {}
        """Queues whose log of changes took no record at the last look, with the error."""

    def __call__(self, store: Store) -> bool:
        """Run the upkeep of every queue; return True if any has more work now."""
        has_more = store.view(has_remains) and store.run(delete_remains)
        names = store.view(lambda view: [queue.name for queue in all_queues(view)])
        notes: tuple[dict[str, Any], ...] = (
            self._rests,
            self._owed,
            self._letters,
            self._refused,
        )
        for notes_by_queue in notes:
            for gone in notes_by_queue.keys() - set(names):
                notes_by_queue.pop(gone, None)
        return (
            sum(self._tend_each(store, name) for name in names if not store.is_closing) > 0
            or has_more
        )

    def _tend_each(self, store: Store, name: str) -> bool:
        """Tend a queue; a queue whose log of changes takes no record keeps no other queue waiting."""
        try:
            has_more = self._tend(store, name)
        except (Conflict, Locked) as error:
            if self._refused.get(name) != error.message:
                self._refused[name] = error.message
                _LOGGER.warning("queue_upkeep_refused queue=%r error=%r", name, error.message)
            return False
        self._refused.pop(name, None)
        return has_more

    def _tend(self, store: Store, name: str) -> bool:
        has_more = route_some(store, name)
        if store.view(lambda view: self.wants(view, name)):
            has_more = store.run(lambda tx: _keep(tx, name)) or has_more
        has_more = self._send_owed(store, name) or has_more
        return self._cut_inbox(store, name) or has_more

    def wants(self, view: View, name: str) -> bool:
        """Return whether a lease has expired, or messages are past their retention."""
        queue = find_queue(view, name)
        if not queue.exists():
            return False
        _, now_ms = view.state.time.now()
        if any(until_ms <= now_ms for until_ms in queue.busy.values()):
            return True
        return is_due(view, queue, now_ms)

    def _send_owed(self, store: Store, name: str) -> bool:
        """Try to write owed dead letters, at most once per `LETTERS_REST_S`."""
        now_s = store.clock.seconds()
        owed = store.view(partial(find_queue, name=name)).letters
        if not owed or now_s < self._owed.get(name, 0.0):
            return False
        first = self._letters.get(name, b"")
        sent, self._letters[name] = store.run(lambda tx: send_owed(tx, name, first))
        if sent and self._letters[name]:
            return True
        self._owed[name] = now_s + LETTERS_REST_S
        return False

    def _cut_inbox(self, store: Store, name: str) -> bool:
        as_of, now_s = (store.state.seq, store.state.folded), store.clock.seconds()
        last, until_s = self._rests.get(name, ((0, 0), 0.0))
        if last == as_of or now_s < until_s:
            return False
        self._rests[name] = (as_of, now_s + REST_S)
        if store.view(lambda view: inbox_cuts(view, name)):
            return store.run(lambda tx: _cut_inbox(tx, name))
        return False


def inbox_cuts(view: View, name: str) -> list[tuple[int, int]]:
    """Return the inboxes of a queue that can be truncated, with their new start."""
    queue = find_queue(view, name)
    cuts = []
    for log in own_logs(name) if queue.exists() else ():
        entry = view.entity(keys.log_name(log), Name)
        if entry.log_id:
            head = view.entity(keys.head(entry.log_id), Head)
            cut = head.start
            if _may_be_cut(queue, head, entry.log_id):
                needed = needed_by(view, queue, entry.log_id)
                cut = min(head.end, _cut(head.start, needed))
            if cut > head.start:
                cuts.append((entry.log_id, cut))
    return cuts


def _may_be_cut(queue: QueueState, head: Head, log_id: int) -> bool:
    """Return whether a look is worth it: most of the routed messages are done."""
    routed = queue.positions.get(log_id, 0) - head.start
    live = sum(queue.alive.values())
    return routed > 0 and (live * LIVE_DIVISOR <= routed or live <= LIVE_LOOKED_AT)


def _cut(begin: int, needed: list[Range]) -> int:
    """Return the new start of an inbox.

    The start is before the first unfinished message. If fewer than a quarter of the messages before
    a later position are unfinished, the start moves beyond them: the queue pins their bytes.
    """
    cut, live = begin, 0
    for start, stop in Needed(
        [needed_range for needed_range in needed if needed_range[1] != NO_END]
    ).ranges:
        start, stop = max(start, begin), max(stop, begin)
        if start - begin > live * LIVE_DIVISOR:
            cut = start
        live += stop - start
        if stop - begin > live * LIVE_DIVISOR:
            cut = stop
    unrouted = Needed(needed).floor
    return unrouted if unrouted - begin > live * LIVE_DIVISOR else cut


def _cut_inbox(tx: WriteTransaction, name: str) -> bool:
    tx.notice_folds()
    cuts = inbox_cuts(tx.view, name)
    for log_id, start in cuts:
        tx.change(keys.head(log_id), LogTruncated(start))
    return bool(cuts)


def _keep(tx: WriteTransaction, name: str) -> bool:
    queue = tx.entity(keys.queue(name), QueueState)
    if not queue.exists():
        return False
    ledger = Ledger(tx, name)
    expire(ledger)
    ledger.close()
    return forget(tx, queue)
