"""How queues stand: counts, rates, the oldest message, and when there will be something to claim."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.format.ids import bucket_of, split_id
from millstream.log.model.head import Head
from millstream.log.reading.reader import RowMoved, entries_of
from millstream.queue import commands as c
from millstream.queue.model import pace
from millstream.queue.model.message import QueueInfo, Skipped
from millstream.queue.model.state import QueueState
from millstream.queue.rules.index import NOISY, QUIET
from millstream.queue.rules.lookup import find_bucket, find_queue, of_queue
from millstream.queue.rules.sources import Facts, QueueSource, facts_of
from millstream.record import moment
from millstream.store.state.state import State
from millstream.store.state.view import View
from millstream.store.store import Store

DUE_COUNTED_MAX = 100_000
"""Due messages that were not claimed yet and are counted; beyond, they are estimated."""

LOGS_LOOKED_AT = 100
"""Logs in which the oldest record that is not routed is looked for."""

BUCKETS_LOOKED_AT = 16
"""Buckets in which the oldest message is looked for, if neither its turn nor its due time tells it."""

ROWS_LOOKED_AT = 64
"""Rows of messages that are ready in which the oldest one is looked for."""


def describe_queue(store: Store, query: c.DescribeQueue) -> QueueInfo | None:
    """How a queue stands; an error about damage names the queue."""
    try:
        while True:  # many logs are looked at in steps, between which others have their turn
            found = store.view(lambda view: _info(view, query.queue))
            if not isinstance(found, Facts):
                return found
    except CorruptionError as error:
        if "queue" in error.data:
            raise
        raise of_queue(error, query.queue) from error


def list_queues(store: Store, query: c.ListQueues) -> list[QueueInfo]:
    """Queues in the order of their names; an error about damage names the queue."""

    def ask(view: View) -> list[str]:
        start = keys.queue(query.after) + (b"\x00" if query.after else b"")
        stop = keys.after(keys.prefix(keys.QUEUE))
        names = view.find(start, stop, limit=query.limit)
        return [key[2:].decode() for key in names]

    try:
        names = store.view(ask)
    except CorruptionError as error:
        key = bytes.fromhex(error.data["where"]) if error.data["what"] == "row" else b""
        if not key.startswith(keys.prefix(keys.QUEUE)):
            raise
        raise of_queue(error, key[2:].decode(errors="backslashreplace")) from error
    found = [describe_queue(store, c.DescribeQueue(name)) for name in names]
    return [info for info in found if info is not None]


def change_in_s(view: View, name: str, *, unrouted: bool) -> float | None:
    """How long until time alone can let a message be claimed; 0: it can be now, None: never."""
    queue = find_queue(view, name)
    free_s = _free_in_s(view.state, queue)
    counts = queue.counts
    if free_s == 0.0 and (unrouted or counts.fresh or counts.ready):
        return 0.0
    _, now_ms = view.state.time.now()
    waits = [until_ms - now_ms for until_ms in queue.busy.values()]
    if free_s:
        waits.append(int(free_s * 1000))
    for count, kind, now in (
        (counts.waiting, keys.RETRY, now_ms),
        (counts.scheduled, keys.SCHEDULE, view.state.clock.wall_ms()),
    ):
        start, stop = keys.of_queue(kind, queue.queue_id)
        for key, _ in view.scan(start, stop, limit=1) if count and free_s == 0.0 else ():
            waits.append(keys.due_claim(key)[0] - now)
    return max(0.001, min(waits) / 1000) if waits else None


def _free_in_s(state: State, queue: QueueState) -> float | None:
    """How long until the queue's caps let a message be claimed; None: when another is finished."""
    spec = queue.spec
    if spec.max_in_flight and queue.counts.in_flight >= spec.max_in_flight:
        return None
    _, now_ms = state.time.now()
    if spec.rate and not pace.affordable(spec.rate, queue.paid_until_ms, now_ms):
        return max(0.001, (pace.next_ms(spec.rate, queue.paid_until_ms) - now_ms) / 1000)
    return 0.0


def _info(view: View, name: str) -> QueueInfo | Facts | None:
    """How a queue stands; facts, if more logs are to be looked at first."""
    queue = find_queue(view, name)
    facts = facts_of(view, name, all_logs=True, any_router=True)
    if facts is None or facts.partial:
        return facts
    _, now_ms = view.state.time.now()
    counts = queue.counts
    due = _due(view, queue, now_ms)
    waiting = counts.waiting + counts.scheduled
    incoming, done = queue.rates.now(now_ms)
    wall_ms = view.state.clock.wall_ms()
    since_ms = claimable_ms(view, queue, facts.sources)
    return QueueInfo(
        name=name,
        spec=queue.spec,
        available=counts.available - waiting + due,
        unrouted=sum(source.behind for source in facts.sources),
        delayed=waiting - due,
        in_flight=counts.in_flight,
        done=counts.done,
        failed=counts.failed,
        duplicates=counts.duplicates,
        lost=counts.lost,
        damaged=queue.damaged,
        skipped=[
            Skipped(view.entity(keys.head(log_id), Head).name, start, stop)
            for log_id, start, stop in queue.skipped
        ],
        letters=queue.letters,
        paused=queue.paused,
        created=moment(queue.created_ms),
        oldest_s=None if since_ms is None or since_ms > wall_ms else (wall_ms - since_ms) / 1000,
        in_per_second=round(incoming, 3),
        done_per_second=round(done, 3),
        set_back=queue.set_back,
        withdrawn=queue.withdrawn,
    )


def _due(view: View, queue: QueueState, now_ms: int) -> int:
    """How many of those that wait for a time could be claimed by now."""
    queue_id, counts, wall_ms = queue.queue_id, queue.counts, view.state.clock.wall_ms()
    found = 0
    for count, key, until_ms in (
        (counts.waiting, keys.retry, now_ms),
        (counts.scheduled, keys.schedule, wall_ms),
    ):
        if count:
            due = key(queue_id, 0, 0), key(queue_id, until_ms + 1, 0)
            rows = view.scan(*due, limit=min(count, DUE_COUNTED_MAX))
            found += sum(keys.run_count(value) for _, value in rows)
    return found


FirstOf = Callable[[int, int, int | None], int | None]
"""A bucket, and slots in it → since when the first message of them can be claimed."""


def claimable_ms(view: View, queue: QueueState, unrouted: list[QueueSource]) -> int | None:
    """Since when the message that waits longest can be claimed, in wall time; None if none waits.

    It can be claimed from when it was appended or is due (a delay, a time, the backoff after an
    attempt, a redrive), whichever is later, and not before the queue was made. A message that waits
    for others of its group, or for a cap or a rate, waits all the same. If all are delayed, the answer
    is a time to come: when the first of them is due.

    The cost is bounded, however many messages wait or are delayed: rows list them by due time, and
    lanes in their turn. Beyond `ROWS_LOOKED_AT` rows of retries that are due, and beyond
    `BUCKETS_LOOKED_AT` buckets of groups or of delayed messages of ordered groups, the answer may be
    that of another message.
    """
    epoch_ms, wall_ms = view.state.time.epoch_ms(), view.state.clock.wall_ms()
    queue_id = queue.queue_id

    def first_of(bucket_id: int, start: int, stop: int | None) -> int | None:
        bucket = find_bucket(view, queue, bucket_id)
        slots = start, len(bucket.states) if stop is None else stop
        return bucket.claimable_ms(slots, epoch_ms=epoch_ms, wall_ms=wall_ms)

    found = [*_in_lanes(view, queue, first_of), *_in_index(view, queue, first_of)]
    for count, kind, epoch in (
        (queue.counts.waiting, keys.RETRY, epoch_ms),
        (queue.counts.scheduled, keys.SCHEDULE, 0),
    ):
        rows = view.scan(*keys.of_queue(kind, queue_id), limit=1) if count else ()
        found += [epoch + keys.due_claim(key)[0] for key, _ in rows]
    if queue.spec.group_by and queue.counts.available > queue.counts.fresh:
        buckets = heapq.nsmallest(BUCKETS_LOOKED_AT, queue.alive, key=lambda one: split_id(one)[1])
        found += [first_of(bucket_id, 0, None) for bucket_id in buckets]
    for source in unrouted[:LOGS_LOOKED_AT]:
        at = source.position
        with suppress(CorruptionError, RowMoved):  # what cannot be read is not counted
            for first, value in entries_of(view, source.log_id, start=at, stop=at + 1):
                appended_ms = entries.decode_places(value).appended[at - first]
                found.append(min(appended_ms, wall_ms) + queue.spec.delay_ms)
    earliest = min((since_ms for since_ms in found if since_ms is not None), default=None)
    return None if earliest is None else max(earliest, min(queue.created_ms, wall_ms))


def _in_lanes(view: View, queue: QueueState, first_of: FirstOf) -> Iterator[int | None]:
    """Since when the first messages of the lanes can be claimed.

    In a lane the first one came first. Only in front of delayed messages of ordered groups, and of
    what was driven again, more buckets are looked at.
    """
    for ranges in queue.lanes.values():
        pieces = chain.from_iterable(queue.pieces(*one) for one in ranges)
        for bucket_id, (start, stop) in islice(pieces, BUCKETS_LOOKED_AT):
            bucket = find_bucket(view, queue, bucket_id)
            if not bucket.until_ms[start]:
                yield first_of(bucket_id, start, start + 1)
                break
            yield first_of(bucket_id, start, stop)


def _in_index(view: View, queue: QueueState, first_of: FirstOf) -> Iterator[int | None]:
    """Since when messages can be claimed that rows list as ready: retries that are due, group heads.

    Rows are in the order of ranks, and no message came before its rank.
    """
    for order in (QUIET, NOISY) if queue.counts.ready else ():
        start = keys.ready(queue.queue_id, (order, 0), 0)
        stop = keys.ready(queue.queue_id, (order + 1, 0), 0)
        earliest: int | None = None
        for key, value in view.scan(start, stop, limit=ROWS_LOOKED_AT):
            (_, rank_ms), claim_id = keys.ready_claim(key)
            if earliest is not None and rank_ms >= earliest:
                break
            bucket_id = bucket_of(claim_id)
            slot, count = claim_id - bucket_id, keys.run_count(value[:4])
            since_ms = first_of(bucket_id, slot, slot + count)
            if since_ms is not None and (earliest is None or since_ms < earliest):
                earliest = since_ms
        yield earliest
