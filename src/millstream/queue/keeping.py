"""Keeping: what a queue still needs of its logs, and what it may forget of its own.

The bytes of a log stay until every queue on it has passed them: until they are routed and the
messages are done. Done messages are forgotten, bucket by bucket, after their retention. What was put
straight to a queue and is done is truncated from its inbox.
"""

from __future__ import annotations

from millstream.format import keys
from millstream.format.ids import capacity_of
from millstream.log.head import Head, Name, Truncated
from millstream.log.sparse import LIVE_DIVISOR, Needed
from millstream.queue.bucket import Bucket
from millstream.queue.dead_letter import send_owed
from millstream.queue.endings import expire
from millstream.queue.ledger import Ledger
from millstream.queue.routing import may_match, own_logs
from millstream.queue.service import route_some
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT
from millstream.queue.state import Counts, Moved, QueueState
from millstream.store.engine import Snapshot
from millstream.store.state import NO_END, State
from millstream.store.store import Store
from millstream.store.transaction import Transaction

QUEUES_MAX = 10_000
BUCKETS_MAX = 1_000_000
REST_S = 5.0
"""How long an inbox that was looked at is left alone while consumers go on."""

LETTERS_REST_S = 1.0
"""How long a dead-letter log that did not take letters is left alone."""

BUCKETS_FORGOTTEN_PER_COMMIT = 20

LIVE_LOOKED_AT = 10_000
"""Up to so many messages that are not done, an inbox is cut before the first of them."""


Range = tuple[int, int]
"""Offsets of a log, half-open."""

_HELD = (AVAILABLE, IN_FLIGHT, FAILED)


def pin(state: State, snapshot: Snapshot, log_id: int) -> list[Range]:
    """The offsets of a log that some queue still needs; the end of a range may be `NO_END`."""
    start = keys.prefix(keys.QUEUE)
    needed: list[Range] = []
    for key in state.find(start, keys.after(start), snapshot, limit=QUEUES_MAX):
        queue = state.entity(key, snapshot)
        assert isinstance(queue, QueueState)
        needed += needed_by(state, snapshot, queue, log_id)
    return needed


def needed_by(state: State, snapshot: Snapshot, queue: QueueState, log_id: int) -> list[Range]:
    """What one queue needs of a log: what it has not routed, and the messages it holds."""
    head = state.entity(keys.head(log_id), snapshot)
    assert isinstance(head, Head)
    needed: list[Range] = []
    if _takes(queue, head) and not queue.spec.lossy:
        needed.append((max(queue.positions.get(log_id, 0), head.dropped), NO_END))
    if log_id not in queue.positions:
        return needed
    for key, states in _buckets(state, snapshot, queue).items():
        bucket = state.entity(key, snapshot)
        assert isinstance(bucket, Bucket)
        for one in states:
            for run in bucket.runs(one):
                needed += [
                    (span.offset, span.offset + span.count)
                    for span in bucket.sources(*run)
                    if span.log_id == log_id
                ]
    return needed


def _takes(queue: QueueState, head: Head) -> bool:
    """Whether routing will go on in a log: not in a deleted one, which nothing leads to."""
    name, spec = head.name, queue.spec
    if head.deleted or not name:
        return False
    if name in (*own_logs(queue.name), *spec.sources):
        return True
    return may_match(name, spec)


def _buckets(state: State, snapshot: Snapshot, queue: QueueState) -> dict[bytes, tuple[int, ...]]:
    """The buckets with messages that need their log, and in which states these are."""
    if queue.spec.keep_payloads:
        start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
        whole = state.find(start, stop, snapshot, limit=BUCKETS_MAX)
        return dict.fromkeys(whole, (*_HELD, DONE))
    return {keys.bucket(queue.queue_id, bucket_id): _HELD for bucket_id in queue.alive}


class QueueUpkeep:
    """Routes, takes back expired leases and forgets what was done long ago, queue by queue."""

    def __init__(self) -> None:
        self._rests: dict[str, tuple[tuple[int, int], float]] = {}
        """Queues whose inbox was looked at → the last commit and fold then, and until when."""
        self._kept: dict[str, tuple[int, int]] = {}
        """Queues in which nothing can be forgotten → how long they keep it, and until when that is."""

        self._owed: dict[str, float] = {}
        """Queues whose dead letters were tried to be written → when they are tried again."""

    def __call__(self, store: Store) -> bool:
        """Look after every queue; True if one of them has more to do right now."""
        names = store.look(_names)
        for known in (self._rests, self._kept, self._owed):
            for gone in known.keys() - set(names):
                known.pop(gone, None)
        return sum(self._tend(store, name) for name in names) > 0

    def _tend(self, store: Store, name: str) -> bool:
        more = route_some(store, name)
        if store.look(lambda state, snapshot: self.wants(state, snapshot, name)):
            more = store.run(lambda tx: _keep(tx, name)) or more
        more = self._send_owed(store, name) or more
        return self._cut_inbox(store, name) or more

    def wants(self, state: State, snapshot: Snapshot, name: str) -> bool:
        """Whether a lease has ended, or the oldest bucket is done with."""
        queue = state.entity(keys.queue(name), snapshot)
        assert isinstance(queue, QueueState)
        if not queue.exists():
            return False
        _, now_ms = state.time.now()
        if any(until_ms <= now_ms for until_ms in queue.busy.values()):
            return True
        kept_ms = queue.spec.done_retention_s * 1000
        last_kept_ms, until_ms = self._kept.get(name, (0, 0))
        if kept_ms == last_kept_ms and now_ms < until_ms:
            return False
        finished = _finished(state, snapshot, queue, limit=1)
        oldest = state.entity(finished[0], snapshot) if finished else None
        if _is_over(oldest, queue, now_ms):
            return True
        # What finishes from now on is kept even longer than the oldest.
        done_ms = max(oldest.until_ms) if isinstance(oldest, Bucket) and oldest.exists() else now_ms
        self._kept[name] = (kept_ms, done_ms + kept_ms)
        return False

    def _send_owed(self, store: Store, name: str) -> bool:
        """Write dead letters that could not be written, now and then."""
        now_s = store.clock.seconds()
        if not store.look(partial(_owes, name=name)) or now_s < self._owed.get(name, 0.0):
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
        if store.look(lambda state, snapshot: inbox_cuts(state, snapshot, name)):
            return store.run(lambda tx: _cut_inbox(tx, name))
        return False


def inbox_cuts(state: State, snapshot: Snapshot, name: str) -> list[tuple[int, int]]:
    """The inboxes of a queue that shall begin later than they do, and where."""
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    found = []
    for log in own_logs(name) if queue.exists() else ():
        entry = state.entity(keys.log_name(log), snapshot)
        assert isinstance(entry, Name)
        if entry.log_id:
            head = state.entity(keys.head(entry.log_id), snapshot)
            assert isinstance(head, Head)
            cut = head.start
            if _may_be_cut(queue, head, entry.log_id):
                needed = needed_by(state, snapshot, queue, entry.log_id)
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


def _cut_inbox(tx: Transaction, name: str) -> bool:
    tx.state.folded_through(tx.writer.first_seq() - 1)
    found = inbox_cuts(tx.state, tx.writer, name)
    for log_id, start in found:
        tx.change(keys.head(log_id), Truncated(start))
    return bool(found)


def _owes(state: State, snapshot: Snapshot, name: str) -> bool:
    """Whether a queue has dead letters still to be written."""
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    return queue.letters > 0


def _names(state: State, snapshot: Snapshot) -> list[str]:
    start = keys.prefix(keys.QUEUE)
    found = state.find(start, keys.after(start), snapshot, limit=QUEUES_MAX)
    return [key[2:].decode() for key in found]


def _finished(state: State, snapshot: Snapshot, queue: QueueState, *, limit: int) -> list[bytes]:
    """The oldest full buckets in which nothing is alive: they lie in the gaps between the others."""
    start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
    found: list[bytes] = []
    expected = -1
    for bucket_id in (*sorted(queue.alive.keys() | queue.filling()), None):
        if bucket_id != expected:
            end = stop if bucket_id is None else keys.bucket(queue.queue_id, bucket_id)
            found += state.find(start, end, snapshot, limit=limit - len(found))
            if bucket_id is None or len(found) >= limit:
                break
        assert bucket_id is not None
        start = keys.bucket(queue.queue_id, bucket_id) + b"\x00"
        expected = bucket_id + capacity_of(bucket_id >> 60)
    return found


def _is_over(bucket: object, queue: QueueState, now_ms: int) -> bool:
    """Whether a bucket is full, nothing in it is alive, and the last was done long enough ago."""
    if not isinstance(bucket, Bucket) or not bucket.exists():
        return False
    if any(bucket.any_are(state) for state in (AVAILABLE, IN_FLIGHT, FAILED)):
        return False
    if not queue.spec.done_retention_s and bucket.any_are(DONE):
        return False
    return bool(max(bucket.until_ms) + queue.spec.done_retention_s * 1000 <= now_ms)


def _keep(tx: Transaction, name: str) -> bool:
    key = keys.queue(name)
    queue = tx.entity(key, QueueState)
    if not queue.exists():
        return False
    ledger = Ledger(tx, name)
    expire(ledger)
    ledger.close()
    forgotten = 0
    limit = BUCKETS_FORGOTTEN_PER_COMMIT
    for bucket_key in _finished(tx.state, tx.writer, queue, limit=limit):
        bucket = tx.entity(bucket_key, Bucket)
        if not _is_over(bucket, queue, tx.store_ms):
            break
        done = bucket.states.count(DONE)
        tx.change(bucket_key, None)
        tx.change(key, Moved(tx.store_ms, Counts(done=-done)))
        forgotten += 1
    return forgotten == BUCKETS_FORGOTTEN_PER_COMMIT
