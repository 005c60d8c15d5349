"""The state of queues for operators: counts, rates, the oldest message, and the next change."""

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
from millstream.queue.model import rates
from millstream.queue.model.message import QueueInfo, Skipped
from millstream.queue.model.own_logs import own_logs
from millstream.queue.model.state import QueueState
from millstream.queue.rules.index import NOISY, QUIET
from millstream.queue.rules.lookup import find_bucket, find_queue, of_queue
from millstream.queue.rules.sources import Facts, QueueSource, facts_of
from millstream.record import moment
from millstream.store.state.state import State
from millstream.store.state.view import View
from millstream.store.store import Store

DUE_COUNTED_MAX = 100_000
"""The most due messages that are counted; more are estimated."""

LOGS_LOOKED_AT = 100
"""The most logs that are searched for the oldest unrouted record."""

BUCKETS_LOOKED_AT = 16
"""The most buckets that are searched for the oldest message, if neither number nor due time shows
it.
"""

ROWS_LOOKED_AT = 64
"""The most rows of ready messages that are searched for the oldest."""


def describe_queue(store: Store, query: c.DescribeQueue) -> QueueInfo | None:
    """Return the state of a queue; an error about damage names the queue."""
    try:
        while True:  # many logs are read in steps, and the mutex is released in between
            info = store.view(lambda view: _info(view, query.queue))
            if not isinstance(info, Facts):
                return info
    except CorruptionError as error:
        if "queue" in error.data:
            raise
        raise of_queue(error, query.queue) from error


def list_queues(store: Store, query: c.ListQueues) -> list[QueueInfo]:
    """Return queues in name order; an error about damage names the queue."""

    def ask(view: View) -> list[str]:
        start = keys.queue(query.after)
        start = keys.successor(start) if query.after else start
        stop = keys.after(keys.prefix(keys.QUEUE))
        names = view.find(start, stop, limit=query.limit)
        return [keys.leading_name(key) for key in names]

    try:
        names = store.view(ask)
    except CorruptionError as error:
        key = bytes.fromhex(error.data["where"]) if error.data["what"] == "row" else b""
        if not key.startswith(keys.prefix(keys.QUEUE)):
            raise
        raise of_queue(error, keys.name_of_log(key)) from error
    infos = [describe_queue(store, c.DescribeQueue(name)) for name in names]
    return [info for info in infos if info is not None]


def change_in_s(view: View, name: str, *, unrouted: bool) -> float | None:
    """Return the seconds until time alone makes a message claimable; 0 for now, None for never."""
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
    """Return the seconds until the caps allow a claim; None if an attempt must end first."""
    spec = queue.spec
    if spec.max_in_flight and queue.counts.in_flight >= spec.max_in_flight:
        return None
    _, now_ms = state.time.now()
    if spec.rate and not rates.affordable(spec.rate, queue.paid_until_ms, now_ms, spec.burst):
        return max(0.001, (rates.next_ms(spec.rate, queue.paid_until_ms) - now_ms) / 1000)
    return 0.0


def _info(view: View, name: str) -> QueueInfo | Facts | None:
    """Return the state of a queue, or its facts if further logs must be read first."""
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
    put = _put(queue, facts.sources)
    put_delayed = put if queue.spec.delay_ms else 0  # the delay counts from the routing
    return QueueInfo(
        name=name,
        spec=queue.spec,
        available=counts.available - waiting + due + put - put_delayed,
        unrouted=sum(source.behind for source in facts.sources) - put,
        delayed=waiting - due + put_delayed,
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
        cancelled=queue.cancelled,
    )


def _put(queue: QueueState, sources: list[QueueSource]) -> int:
    """Return the number of messages that were put, are not routed yet, and are no repeats for certain."""
    if queue.spec.dedup_by:
        return 0
    own = own_logs(queue.name)
    return sum(source.behind for source in sources if source.name in own)


def _due(view: View, queue: QueueState, now_ms: int) -> int:
    """Return the number of due messages among those that wait for a time."""
    queue_id, counts, wall_ms = queue.queue_id, queue.counts, view.state.clock.wall_ms()
    total = 0
    for count, key, until_ms in (
        (counts.waiting, keys.retry, now_ms),
        (counts.scheduled, keys.schedule, wall_ms),
    ):
        if count:
            due = key(queue_id, 0, 0), key(queue_id, until_ms + 1, 0)
            rows = view.scan(*due, limit=min(count, DUE_COUNTED_MAX))
            total += sum(keys.run_count(value) for _, value in rows)
    return total


FirstOf = Callable[[int, int, int | None], int | None]
"""A bucket and slots in it → the time from which the first message is claimable."""


def claimable_ms(view: View, queue: QueueState, unrouted: list[QueueSource]) -> int | None:
    """Return the wall time since which the oldest message is claimable; None without messages.

    A message is claimable from its append or its due time (a delay, a time, the backoff after an
    attempt, a redrive), whichever is later, and not before the queue was made. Waiting for the
    group, a cap or a rate counts as claimable. If all messages are delayed, the answer is in the
    future: the first due time.

    The cost is bounded for any number of messages: rows list them by due time, and lanes by number.
    Beyond `ROWS_LOOKED_AT` rows of due retries, and beyond `BUCKETS_LOOKED_AT` buckets of groups or
    of delayed messages of ordered groups, the answer may be off.
    """
    epoch_ms, wall_ms = view.state.time.epoch_ms(), view.state.clock.wall_ms()
    queue_id = queue.queue_id

    def first_of(bucket_id: int, start: int, stop: int | None) -> int | None:
        bucket = find_bucket(view, queue, bucket_id)
        slots = start, len(bucket.states) if stop is None else stop
        return bucket.claimable_ms(slots, epoch_ms=epoch_ms, wall_ms=wall_ms)

    times_ms = [*_in_lanes(view, queue, first_of), *_in_index(view, queue, first_of)]
    for count, kind, epoch in (
        (queue.counts.waiting, keys.RETRY, epoch_ms),
        (queue.counts.scheduled, keys.SCHEDULE, 0),
    ):
        rows = view.scan(*keys.of_queue(kind, queue_id), limit=1) if count else ()
        times_ms += [epoch + keys.due_claim(key)[0] for key, _ in rows]
    if queue.spec.group_by and queue.counts.available > queue.counts.fresh:
        buckets = heapq.nsmallest(
            BUCKETS_LOOKED_AT, queue.alive, key=lambda bucket_id: split_id(bucket_id)[1]
        )
        times_ms += [first_of(bucket_id, 0, None) for bucket_id in buckets]
    for source in unrouted[:LOGS_LOOKED_AT]:
        at = source.position
        with suppress(CorruptionError, RowMoved):  # unreadable records are not counted
            for first, value in entries_of(view, source.log_id, start=at, stop=at + 1):
                appended_ms = entries.decode_places(value).appended[at - first]
                times_ms.append(min(appended_ms, wall_ms) + queue.spec.delay_ms)
    earliest = min((since_ms for since_ms in times_ms if since_ms is not None), default=None)
    return None if earliest is None else max(earliest, min(queue.created_ms, wall_ms))


def _in_lanes(view: View, queue: QueueState, first_of: FirstOf) -> Iterator[int | None]:
    """Yield the times from which the first messages of the lanes are claimable.

    The first message of a lane is the oldest. Only delayed messages of ordered groups and redriven
    messages require a look at further buckets.
    """
    for ranges in queue.lanes.values():
        pieces = chain.from_iterable(queue.pieces(*numbers) for numbers in ranges)
        for bucket_id, (start, stop) in islice(pieces, BUCKETS_LOOKED_AT):
            bucket = find_bucket(view, queue, bucket_id)
            if not bucket.until_ms[start]:
                yield first_of(bucket_id, start, start + 1)
                break
            yield first_of(bucket_id, start, stop)


def _in_index(view: View, queue: QueueState, first_of: FirstOf) -> Iterator[int | None]:
    """Yield the times from which ready messages are claimable: due retries and group heads.

    Rows are in rank order, and no message is older than its rank.
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
