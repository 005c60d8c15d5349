"""Keeping: what a queue still needs of its logs, and what it may forget of its own.

The bytes of a log stay until every queue on it has passed them: until they are routed and the
messages are done. Done messages are forgotten after their retention (`aging`). What was put straight
to a queue and is done is truncated from its inbox. A log that forgets what was consumed asks of every
queue up to where it has finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from millstream.format import keys
from millstream.log.model.head import Head, LogTruncated, Name
from millstream.log.rules.sparse import LIVE_DIVISOR, Needed
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import forget, is_due
from millstream.queue.rules.dead_letter import send_owed
from millstream.queue.rules.endings import expire
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import all_queues, find_queue
from millstream.queue.rules.operations import delete_remains, has_remains
from millstream.queue.rules.sources import own_logs, takes
from millstream.queue.service.consuming import route_some
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.state import NO_END
from millstream.store.state.view import View
from millstream.store.store import Store

REST_S = 5.0
"""How long an inbox that was looked at is left alone while consumers go on."""

LETTERS_REST_S = 1.0
"""How long a dead-letter log that did not take letters is left alone."""

LIVE_LOOKED_AT = 10_000
"""Up to so many messages that are not done, an inbox is cut before the first of them."""


Range = tuple[int, int]
"""Offsets of a log, half-open."""


def pin(view: View, log_id: int) -> list[Range]:
    """The offsets of a log that some queue still needs; the end of a range may be `NO_END`."""
    return [found for queue in all_queues(view) for found in needed_by(view, queue, log_id)]


def needed_by(view: View, queue: QueueState, log_id: int) -> list[Range]:
    """What one queue needs of a log: what it has not routed, and the messages it holds."""
    head = view.entity(keys.head(log_id), Head)
    needed: list[Range] = []
    if goes_on_in(queue, head) and not queue.spec.lossy:
        needed.append((head.next_at(queue.positions.get(log_id, 0)), NO_END))
    if log_id in queue.positions:
        done = (DONE,) if queue.spec.keep_payloads else ()
        needed += _held(view, queue, log_id, (AVAILABLE, IN_FLIGHT, FAILED, *done))
    return needed


def _held(view: View, queue: QueueState, log_id: int, states: Iterable[int]) -> Iterator[Range]:
    """The offsets of a log whose messages are in one of these states."""
    if DONE in states:
        found: Iterable[bytes] = view.find_all(*keys.of_queue(keys.BUCKET, queue.queue_id))
    else:
        found = [keys.bucket(queue.queue_id, bucket_id) for bucket_id in queue.alive]
    for key in found:
        bucket = view.entity(key, Bucket)
        for state in states:
            for run in bucket.runs(state):
                for span in bucket.sources(*run):
                    if span.log_id == log_id:
                        yield span.offset, span.offset + span.count


def goes_on_in(queue: QueueState, head: Head) -> bool:
    """Whether routing will go on in a log: not in a deleted one, which nothing leads to."""
    if head.deleted or not head.name:
        return False
    return takes(queue.name, queue.spec, head.name)


def queue_past(tx: WriteTransaction, log_id: int, offset: int) -> str | None:
    """A queue that was routed beyond an offset of a log, in words; None if there is none."""
    for queue in all_queues(tx.view):
        if queue.positions.get(log_id, 0) > offset:
            return f"queue {queue.name!r}"
    return None


def queues_passed(view: View, log_id: int) -> list[int]:
    """Up to where each queue on a log has passed it: what lies before is routed, and done or failed.

    A failed message does not hold its log: the queue keeps its bytes for as long as it needs them.
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
    """Routes, takes back expired leases and forgets what was done long ago, queue by queue."""

    def __init__(self) -> None:
        self._rests: dict[str, tuple[tuple[int, int], float]] = {}
        """Queues whose inbox was looked at → the last commit and fold then, and until when."""
        self._owed: dict[str, float] = {}
        """Queues whose dead letters were tried to be written → when they are tried again."""

    def __call__(self, store: Store) -> bool:
        """Look after every queue; True if one of them has more to do right now."""
        more = store.view(has_remains) and store.run(delete_remains)
        names = store.view(lambda view: [queue.name for queue in all_queues(view)])
        for known in (self._rests, self._owed):
            for gone in known.keys() - set(names):
                known.pop(gone, None)
        return sum(self._tend(store, name) for name in names if not store.is_closing) > 0 or more

    def _tend(self, store: Store, name: str) -> bool:
        more = route_some(store, name)
        if store.view(lambda view: self.wants(view, name)):
            more = store.run(lambda tx: _keep(tx, name)) or more
        more = self._send_owed(store, name) or more
        return self._cut_inbox(store, name) or more

    def wants(self, view: View, name: str) -> bool:
        """Whether a lease has ended, or something is to be forgotten."""
        queue = find_queue(view, name)
        if not queue.exists():
            return False
        _, now_ms = view.state.time.now()
        if any(until_ms <= now_ms for until_ms in queue.busy.values()):
            return True
        return is_due(view, queue, now_ms)

    def _send_owed(self, store: Store, name: str) -> bool:
        """Write dead letters that could not be written, now and then."""
        now_s = store.clock.seconds()
        owed = store.view(partial(find_queue, name=name)).letters
        if not owed or now_s < self._owed.get(name, 0.0):
            return False
        if store.run(lambda tx: send_owed(tx, name)):
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
    """The inboxes of a queue that shall begin later than they do, and where."""
    queue = find_queue(view, name)
    found = []
    for log in own_logs(name) if queue.exists() else ():
        entry = view.entity(keys.log_name(log), Name)
        if entry.log_id:
            head = view.entity(keys.head(entry.log_id), Head)
            cut = head.start
            if _may_be_cut(queue, head, entry.log_id):
                needed = needed_by(view, queue, entry.log_id)
                cut = min(head.end, _cut(head.start, needed))
            if cut > head.start:
                found.append((entry.log_id, cut))
    return found


def _may_be_cut(queue: QueueState, head: Head, log_id: int) -> bool:
    """Whether it is worth looking: something was routed, and most of that is done."""
    routed = queue.positions.get(log_id, 0) - head.start
    live = sum(queue.alive.values())
    return routed > 0 and (live * LIVE_DIVISOR <= routed or live <= LIVE_LOOKED_AT)


def _cut(begin: int, needed: list[Range]) -> int:
    """Where an inbox shall begin.

    That is before the first message that is not done, or behind some, if they are fewer than a
    quarter: they stay the queue's, but are no longer read as part of the log.
    """
    cut, live = begin, 0
    for start, stop in Needed([one for one in needed if one[1] != NO_END]).ranges:
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
    found = inbox_cuts(tx.view, name)
    for log_id, start in found:
        tx.change(keys.head(log_id), LogTruncated(start))
    return bool(found)


def _keep(tx: WriteTransaction, name: str) -> bool:
    queue = tx.entity(keys.queue(name), QueueState)
    if not queue.exists():
        return False
    ledger = Ledger(tx, name)
    expire(ledger)
    ledger.close()
    return forget(tx, queue)
