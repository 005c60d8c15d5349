"""How queues stand: counts, rates, the oldest message, and when there will be something to claim."""

from __future__ import annotations

from contextlib import suppress

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.log.head import Head
from millstream.log.reader import RowMoved, entries_of
from millstream.queue import commands as c
from millstream.queue.model import pace
from millstream.queue.model.message import QueueInfo, Skipped
from millstream.queue.model.slots import AVAILABLE
from millstream.queue.model.state import QueueState
from millstream.queue.rules.finding import find_bucket, find_queue, of_queue
from millstream.queue.rules.sources import Facts, QueueSource, facts_of
from millstream.record import moment
from millstream.store.rows import View
from millstream.store.state import State
from millstream.store.store import Store

DUE_COUNTED_MAX = 100_000
"""Due messages that were not claimed yet and are counted; beyond, they are estimated."""

LOGS_LOOKED_AT = 100
"""Logs in which the oldest record that is not routed is looked for."""


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
        raise of_queue(error, key[2:].decode()) from error
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
    facts = facts_of(view, name, whole=True, anyone=True)
    if facts is None or facts.partial:
        return facts
    _, now_ms = view.state.time.now()
    counts = queue.counts
    due = _due(view, queue, now_ms)
    waiting = counts.waiting + counts.scheduled
    incoming, done = queue.rates.now(now_ms)
    waits_since_ms = oldest_ms(view, queue, facts.sources)
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
        oldest_s=None
        if waits_since_ms is None
        else max(0.0, (view.state.clock.wall_ms() - waits_since_ms) / 1000),
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


def oldest_ms(
    view: View, queue: QueueState, unrouted: list[QueueSource], *, buckets_max: int | None = None
) -> int | None:
    """When the oldest message that waits was appended, or a record that is not routed.

    A message that waits behind more than `buckets_max` buckets of failed ones is not found.
    """
    found: list[int] = []
    for ranges in queue.lanes.values():
        for bucket_id, (slot, _) in queue.pieces(*ranges[0]):
            found.append(find_bucket(view, queue, bucket_id).arrived_ms(slot))
            break
    if queue.counts.available > queue.counts.fresh:
        for bucket_id in sorted(queue.alive, key=lambda one: one & ((1 << 60) - 1))[:buckets_max]:
            bucket = find_bucket(view, queue, bucket_id)
            waits = next(bucket.runs(AVAILABLE), None)
            if waits is not None:
                found.append(bucket.arrived_ms(waits[0]))
                break
    for source in unrouted[:LOGS_LOOKED_AT]:
        at = source.position
        with suppress(CorruptionError, RowMoved):  # what cannot be read is not counted
            for first, value in entries_of(view, source.log_id, start=at, stop=at + 1):
                found.append(entries.decode_places(value).appended[at - first])
    return min(found, default=None)
