"""The fate of a message that was put, by the id that `put` returned; and the attempts at a message.

A bisection finds most messages. Redriven and unknown messages need a search through the buckets, a
few at a time, which takes longer the more messages the queue remembers.
"""

from __future__ import annotations

from functools import partial

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.log.model.head import Head, Name
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.attempts import reasons_of, trials_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.cancel_requests import CancelRequests
from millstream.queue.model.message import Fate, State, Try, tries_of
from millstream.queue.model.own_logs import place_of_put
from millstream.queue.model.slots import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FAILED,
    FORGOTTEN,
    IN_FLIGHT,
)
from millstream.queue.model.state import QueueState
from millstream.queue.rules.locating import bisect_message, slot_in
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.rules.notes import read_note
from millstream.queue.rules.waiting_rows import find_delay
from millstream.queue.service.backlog import route_ahead
from millstream.queue.service.peek import BUCKETS_PER_LOOK, find_buckets
from millstream.record import moment
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

_STATES: dict[int, State] = {
    AVAILABLE: "available",
    IN_FLIGHT: "in_flight",
    DONE: "done",
    FORGOTTEN: "done",
    FAILED: "failed",
    CANCELLED: "cancelled",
}
IDS_MAX = 1_000
"""The most messages that are looked up at once."""

_UNKNOWN = Fate(state="unknown")
_UNROUTED = Fate(state="available")


def find_message(store: Store, query: c.FindMessage) -> Fate:
    """Return the fate of a message."""
    log, offset = place_of_put(query.queue, check_integer("a message's id", query.id))
    store.refresh()
    reading = Reading(store)
    fate = search(reading, query.queue, log, offset)
    if fate is _UNROUTED:
        route_ahead(reading, query.queue, 1)  # routing decides its delay and whether it is a repeat
        fate = search(reading, query.queue, log, offset)
    return fate


def find_messages(store: Store, query: c.FindMessages) -> list[Fate]:
    """Return the fates of messages, in the order of their ids."""
    if len(query.ids) > IDS_MAX:
        raise InvalidInput(
            f"up to {IDS_MAX:,} messages are looked up at once, not {len(query.ids):,}"
        )
    return [find_message(store, c.FindMessage(query.queue, id)) for id in query.ids]


def search(reading: Reading, queue: str, log: str, offset: int) -> Fate:
    """Find a message: by bisection, then in buckets with unfinished messages, then in all buckets."""
    bisected = reading.view(partial(_bisect, queue=queue, log=log, offset=offset))
    if bisected is not None:
        return bisected
    for state in ("available", None):
        fate: Fate | int = 0
        while isinstance(fate, int):
            ask = partial(_find, queue=queue, log=log, offset=offset, state=state, first=fate)
            fate = reading.view(ask)
        if fate is not _UNKNOWN:
            return fate
    return _UNKNOWN


def _bisect(view: View, *, queue: str, log: str, offset: int) -> Fate | None:
    """Return the fate of a message; None if only a search through the buckets can tell."""
    queue_state = need_queue(view, queue)
    log_id = view.entity(keys.log_name(log), Name).log_id
    head = view.entity(keys.head(log_id), Head) if log_id else None
    if head is None or offset >= head.end:
        return _UNKNOWN
    if offset >= head.next_at(queue_state.positions.get(log_id, 0)):
        return _UNROUTED if queue_state.spec.in_order else Fate(state="available")
    place = bisect_message(view, queue_state, log_id, offset)
    if place is None:
        return None
    return fate_in(view, queue_state, place.bucket, place.bucket_id, place.slot)


def _find(
    view: View, *, queue: str, log: str, offset: int, state: str | None, first: int
) -> Fate | int:
    """Return the fate of a message, or the claim number to continue the search from."""
    queue_state = need_queue(view, queue)
    log_id = view.entity(keys.log_name(log), Name).log_id
    for looked_at, bucket_id in enumerate(find_buckets(view, queue_state, state, first)):
        if looked_at == BUCKETS_PER_LOOK:
            return split_id(bucket_id)[1]
        bucket = find_bucket(view, queue_state, bucket_id)
        if (slot := slot_in(bucket, log_id, offset)) is not None:
            return fate_in(view, queue_state, bucket, bucket_id, slot)
    return _UNKNOWN


def fate_in(view: View, queue: QueueState, bucket: Bucket, bucket_id: int, slot: int) -> Fate:
    """Return the fate of the message in a slot."""
    state, claim_id = _STATES[bucket.states[slot]], bucket_id + slot
    until_ms = bucket.until_ms[slot]
    until = moment(view.state.time.epoch_ms() + until_ms) if until_ms else None
    if state == "available":
        until_wall_ms = _due_wall_ms(view, queue, claim_id, until_ms)
        until = None if until_wall_ms is None else moment(until_wall_ms)
        state = "available" if until is None else "delayed"
    reason = reasons_of(bucket, slot, slot + 1)[0]
    note = read_note(view, queue.queue_id, claim_id)
    is_done = state == "done"
    return Fate(
        state=state,
        claim_id=claim_id,
        attempts=bucket.attempts[slot],
        until=until,
        reason="" if state in ("done", "cancelled") else reason,
        result=note.result,
        error=None if is_done else note.error,
        progress=None if is_done else note.progress,
        is_cancel_requested=state == "in_flight" and _is_requested(view, queue, claim_id),
    )


def _is_requested(view: View, queue: QueueState, claim_id: int) -> bool:
    return claim_id in view.entity(keys.cancels(queue.queue_id), CancelRequests).claims


def _due_wall_ms(view: View, queue: QueueState, claim_id: int, due_ms: int) -> int | None:
    """Return the wall time at which a waiting message is due; None if it does not wait for a time."""
    counts = queue.counts
    waits_in_turn = not due_ms and queue.is_in_lane(claim_id)
    if waits_in_turn or not (counts.waiting or counts.scheduled):
        return None
    epoch_ms = view.state.time.epoch_ms()
    for exact in (True, False):
        row = find_delay(view, queue, claim_id, due_ms, epoch_ms, exact=exact)
        if row is None:
            continue
        if row.kind == "scheduled":
            return row.due_ms if row.due_ms > view.state.clock.wall_ms() else None
        return epoch_ms + row.due_ms if row.due_ms > view.state.time.now()[1] else None
    return None


def get_attempts(store: Store, query: c.GetAttempts) -> list[Try]:
    """Return the attempts at a message, oldest first."""

    def ask(view: View) -> list[Try]:
        queue = need_queue(view, query.queue)
        bucket_id = bucket_of(query.claim_id)
        slot = query.claim_id - bucket_id
        history = trials_of(find_bucket(view, queue, bucket_id), slot, slot + 1)[0]
        return tries_of(history, view.state.time.epoch_ms())

    return store.view(ask)
