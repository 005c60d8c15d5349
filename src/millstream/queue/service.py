"""What consumers ask for, in several steps: route, claim, wait, read.

Only the claim itself runs under the write lock; looking for messages and reading their payloads
happen outside it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from millstream.errors import InvalidInput, NotFound
from millstream.format import keys
from millstream.format.ids import bucket_of, capacity_of, split_id
from millstream.log.head import Head
from millstream.log.recent import recent_rows
from millstream.queue import commands as c
from millstream.queue.bucket import Bucket
from millstream.queue.claims import claim
from millstream.queue.message import Message, QueueInfo, Try
from millstream.queue.reading import log_name, read_granted
from millstream.queue.routing import Facts, facts_of, find_sources, route
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Span
from millstream.queue.state import QueueState
from millstream.store.engine import Snapshot
from millstream.store.state import State
from millstream.store.store import Store

PEEK_MAX = 10_000
BUCKETS_PER_PAGE = 100
STATES = {"available": AVAILABLE, "in flight": IN_FLIGHT, "done": DONE, "failed": FAILED}
_OUTCOMES = {AVAILABLE: "again", DONE: "done", FAILED: "failed"}


def claim_messages(store: Store, query: c.ClaimMessages) -> list[Message]:
    """Claim messages, waiting for the first if asked; their payloads are read afterwards."""
    deadline = None if query.wait_ms is None else store.clock.seconds() + query.wait_ms / 1000
    while True:
        found = claim_now(store, query)
        left_s = 0.0 if deadline is None else deadline - store.clock.seconds()
        if found or left_s <= 0:
            return found
        query = replace(query, acked=[])
        changed = threading.Event()
        watched = watched_keys(store, query.queue)
        for key in watched:
            store.watch.add(key, changed.set)
        try:
            # What came before the watch began woke nobody: look once more.
            patience_s = patience(store, query.queue, left_s)
            if patience_s:
                changed.wait(patience_s)
        finally:
            for key in watched:
                store.watch.remove(key, changed.set)


def claim_now(store: Store, query: c.ClaimMessages) -> list[Message]:
    """Route as far as is needed and claim what there is, without waiting."""
    acked = query.acked
    ahead: dict[str, int] = store.scratch.setdefault("routed ahead", {})
    while True:
        routed = []
        if ahead.get(query.queue, 0) < query.count:
            routed = route(store, _need_facts(store, query.queue), query.count)
        command = c.ClaimRouted(
            query.queue, query.count, query.lease_ms, query.consumer, routed, acked, query.pop
        )
        granted = store.run(partial(claim, command=command))
        guessed = query.count and ahead.pop(query.queue, 0) >= query.count
        acked = []
        if granted.grants:
            ahead[query.queue] = granted.untouched
            return read_granted(store, query.queue, granted.grants)
        moved = granted.expired or any(found.stop > found.start for found in routed)
        if not guessed and not moved:
            return []


def watched_keys(store: Store, name: str) -> list[bytes]:
    """What changes when there may be something to claim: the queue, its logs, the list of logs."""
    facts = _need_facts(store, name)
    heads = [keys.head(source.log_id) for source in facts.sources]
    return [keys.queue(name), keys.prefix(keys.NAME), *heads]


def patience(store: Store, name: str, most_s: float) -> float:
    """How long there can be nothing to claim unless something changes; 0 if there is something."""
    store.refresh()
    facts = _need_facts(store, name)
    if facts.paused:
        return most_s
    if facts.untouched or any(source.position < source.end for source in facts.sources):
        return 0.0
    due_s = store.look(lambda state, snapshot: _due_in_s(state, snapshot, name))
    return most_s if due_s is None else min(most_s, due_s)


def _need_facts(store: Store, name: str) -> Facts:
    facts = store.look(lambda state, snapshot: facts_of(state, snapshot, name))
    if facts is None:
        raise NotFound(f"there is no queue {name!r}", name=name)
    return facts


def _due_in_s(state: State, snapshot: Snapshot, name: str) -> float | None:
    """How long until a retry is due or a lease ends; None if nothing of the kind waits."""
    queue = _queue(state, snapshot, name)
    _, now_ms = state.time.now()
    times = list(queue.busy.values())
    start = keys.retry(queue.queue_id, 0, 0)
    stop = keys.retry(queue.queue_id + 1, 0, 0)
    for key, _ in state.scan(start, stop, snapshot, limit=1):
        times.append(keys.retry_claim(key)[0])
    return max(0.001, (min(times) - now_ms) / 1000) if times else None


def peek_messages(store: Store, query: c.PeekMessages) -> list[Message]:
    """Messages in a state, in the order of their claim ids, without claiming them."""
    if query.state not in STATES:
        raise InvalidInput(f"a state is one of {', '.join(STATES)}, not {query.state!r}")
    if not 0 <= query.count <= PEEK_MAX:
        raise InvalidInput(f"a peek is at up to {PEEK_MAX:,} messages")
    if query.state == "available":
        _route_ahead(store, query.queue, query.count)
    found = store.look(lambda state, snapshot: _find(state, snapshot, query))
    messages = []
    for claim_id, span, attempts, until_ms, reasons in found:
        log = log_name(store, span.log_id)
        rows = recent_rows(
            store, span.log_id, log, start=span.offset, stop=span.offset + span.count
        )
        messages += [
            Message(
                query.queue,
                claim_id + i,
                attempts[i],
                value,
                key,
                headers,
                ms,
                log,
                offset,
                until_ms[i],
                reasons[i],
            )
            for i, (offset, value, ms, key, headers) in enumerate(rows)
        ]
    return messages


def _route_ahead(store: Store, name: str, count: int) -> None:
    """Route as many messages as are to be looked at."""
    routed = route(store, _need_facts(store, name), count)
    if routed:
        command = c.ClaimRouted(name, 0, None, "", routed, [])
        store.run(partial(claim, command=command))


Found = tuple[int, Span, list[int], list[int], list[str]]


def _find(state: State, snapshot: Snapshot, query: c.PeekMessages) -> list[Found]:
    queue = _queue(state, snapshot, query.queue)
    first = 0 if query.after < 0 else split_id(query.after)[1] + 1
    found: list[Found] = []
    left = query.count
    for bucket_id in _buckets(state, snapshot, queue, query.state, first):
        bucket = _bucket(state, snapshot, queue, bucket_id)
        low = max(0, first - split_id(bucket_id)[1])
        for start, stop in bucket.runs(STATES[query.state], low):
            for span in bucket.sources(start, min(stop, start + left)):
                slots = range(span.slot, span.slot + span.count)
                found.append(
                    (
                        queue.claim_id(bucket_id, span.slot),
                        span,
                        [bucket.attempts[slot] for slot in slots],
                        [bucket.until_ms[slot] for slot in slots],
                        [_reason(bucket, slot) for slot in slots],
                    )
                )
                left -= span.count
            if left <= 0:
                return found
    return found


def _buckets(
    state: State, snapshot: Snapshot, queue: QueueState, wanted: str, first: int
) -> Iterator[int]:
    """The buckets that may hold messages in a state, from a claim number on, in order."""
    if wanted != "done":
        by_number = sorted(queue.alive, key=lambda bucket_id: split_id(bucket_id)[1])
        yield from (one for one in by_number if split_id(one)[1] + capacity_of(one >> 60) > first)
        return
    start, stop = keys.bucket(queue.queue_id, 0), keys.bucket(queue.queue_id + 1, 0)
    while page := state.find(start, stop, snapshot, limit=BUCKETS_PER_PAGE):
        for key in page:
            bucket_id = int.from_bytes(key[10:], "big")
            if split_id(bucket_id)[1] + capacity_of(bucket_id >> 60) > first:
                yield bucket_id
        start = page[-1] + b"\x00"


def _reason(bucket: Bucket, slot: int) -> str:
    ends = [end for end in bucket.ends if end.start <= slot < end.stop]
    return ends[-1].reason if ends else ""


def get_attempts(store: Store, query: c.GetAttempts) -> list[Try]:
    """How the attempts at a message went, in order."""

    def ask(state: State, snapshot: Snapshot) -> list[Try]:
        queue = _queue(state, snapshot, query.queue)
        bucket_id = bucket_of(query.claim_id)
        slot = split_id(query.claim_id)[1] - split_id(bucket_id)[1]
        bucket = _bucket(state, snapshot, queue, bucket_id)
        tries = [one for one in bucket.tries if one.start <= slot < one.stop]
        ends = [end for end in bucket.ends if end.start <= slot < end.stop]
        found = [
            Try(one.at_ms, one.consumer, end.at_ms, _OUTCOMES[end.state], end.reason)
            for one, end in zip(tries, ends, strict=False)
        ]
        return found + [Try(one.at_ms, one.consumer) for one in tries[len(ends) :]]

    return store.look(ask)


def describe_queue(store: Store, query: c.DescribeQueue) -> QueueInfo | None:
    """How a queue stands."""
    return store.look(lambda state, snapshot: _info(state, snapshot, query.queue))


def list_queues(store: Store, query: c.ListQueues) -> list[QueueInfo]:
    """Queues in the order of their names."""

    def ask(state: State, snapshot: Snapshot) -> list[QueueInfo]:
        start = keys.queue(query.after) + (b"\x00" if query.after else b"")
        stop = keys.after(keys.prefix(keys.QUEUE))
        names = state.find(start, stop, snapshot, limit=query.limit)
        found = [_info(state, snapshot, key[2:].decode()) for key in names]
        return [info for info in found if info is not None]

    return store.look(ask)


def _info(state: State, snapshot: Snapshot, name: str) -> QueueInfo | None:
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    if not queue.exists():
        return None
    unrouted = 0
    for log_id in find_sources(state, snapshot, name, queue.spec):
        head = _head(state, snapshot, log_id)
        unrouted += max(0, head.end - max(queue.positions.get(log_id, 0), head.dropped))
    _, now_ms = state.time.now()
    stop = keys.retry(queue.queue_id, now_ms + 1, 0)
    counts = queue.counts
    waiting = max(1, counts.waiting)
    due = len(state.scan(keys.retry(queue.queue_id, 0, 0), stop, snapshot, limit=waiting))
    return QueueInfo(
        name=name,
        spec=queue.spec,
        available=counts.available - counts.waiting + due,
        unrouted=unrouted,
        delayed=counts.waiting - due,
        in_flight=counts.in_flight,
        done=counts.done,
        failed=counts.failed,
        paused=queue.paused,
        created=queue.created_ms,
    )


def _queue(state: State, snapshot: Snapshot, name: str) -> QueueState:
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    if not queue.exists():
        raise NotFound(f"there is no queue {name!r}", name=name)
    return queue


def _bucket(state: State, snapshot: Snapshot, queue: QueueState, bucket_id: int) -> Bucket:
    found = state.entity(keys.bucket(queue.queue_id, bucket_id), snapshot)
    assert isinstance(found, Bucket)
    return found


def _head(state: State, snapshot: Snapshot, log_id: int) -> Head:
    found = state.entity(keys.head(log_id), snapshot)
    assert isinstance(found, Head)
    return found
