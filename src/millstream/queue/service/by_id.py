"""Commands about one message by its id: cancel it, put it and report a repeat.

Both need the place of messages in the queue, so unrouted messages of the queue's own logs are routed
first, in commits of their own. The last commit checks that nothing has changed meanwhile; otherwise
the caller looks again.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from millstream.errors import InvalidInput, Overloaded
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.head import Head, Name
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.message import CancelOutcome, PutResult
from millstream.queue.model.own_logs import own_logs, place_of_put, put_id
from millstream.queue.rules.cancelling import (
    PlacedMessage,
    cancel_placed,
    cancel_waiting,
    not_waiting,
)
from millstream.queue.rules.claims import place_routed
from millstream.queue.rules.locating import bisect_message, slot_in
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.rules.puts import put_reported
from millstream.queue.rules.sources import source_of
from millstream.queue.service.backlog import route_through
from millstream.queue.service.message_fate import search
from millstream.queue.service.router import route_log_inside
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

ROUTED_INSIDE_MAX = 10_000
"""The most messages that a step of a transaction routes before the message that it cancels."""


def cancel_message(store: Store, command: c.CancelMessage) -> CancelOutcome:
    """Cancel a message that waits, or ask its consumer to stop; return the outcome."""
    _check_named(command)
    store.refresh()
    find_by_claim = partial(_find_by_claim, queue=command.queue, claim_id=command.claim_id or 0)
    while True:
        if command.id is not None:
            placed = _find_by_id(store, command.queue, command.id)
        else:
            placed = store.view(find_by_claim)
        if placed is None:
            return False
        cancel = partial(
            cancel_placed, queue=command.queue, message=placed, running=command.running
        )
        outcome = store.run(cancel)
        if outcome is not None:
            return outcome
        if command.id is None:
            return False  # the message has left its slot; only its id leads to another slot


def cancel_in_commit(tx: WriteTransaction, command: c.CancelMessage) -> CancelOutcome:
    """Cancel a message as a step of a transaction; its unrouted log is routed in the same commit."""
    _check_named(command)
    queue = command.queue
    if command.id is None:
        placed = _find_by_claim(tx.view, queue, command.claim_id or 0)
    else:
        log, offset = place_of_put(queue, check_integer("a message's id", command.id))
        _route_own_log(tx, queue, log, offset)
        placed = _find_in_view(tx.view, queue, log, offset)
    if placed is None:
        return False
    return cancel_placed(tx, queue, placed, running=command.running) or False


def cancel_waiting_in_commit(tx: WriteTransaction, command: c.CancelWaiting) -> None:
    """Cancel a message that waits as a step of a transaction; raise `Conflict` if the message does not wait."""
    queue, claim_id = command.queue, command.claim_id
    if claim_id is None:
        log, offset = place_of_put(queue, check_integer("a message's id", command.id))
        _route_own_log(tx, queue, log, offset)
        placed = _find_in_view(tx.view, queue, log, offset)
        if placed is None:
            raise not_waiting(queue, command.id, None)
        claim_id = placed.claim_id
    cancel_waiting(tx, queue, command.id, claim_id)


def _route_own_log(tx: WriteTransaction, name: str, log: str, offset: int) -> None:
    """Route one of a queue's own logs through an offset, inside the commit."""
    queue = need_queue(tx.view, name)
    log_id = tx.entity(keys.log_name(log), Name).log_id
    if not log_id or offset >= tx.entity(keys.head(log_id), Head).end:
        return
    source = source_of(tx.view, queue, log_id)
    if source.position > offset:
        return
    keeps_order = queue.spec.in_order and queue.spec.sources
    if keeps_order or offset - source.position >= ROUTED_INSIDE_MAX:
        raise Overloaded(
            f"queue {name!r} has not looked at message {put_id(name, log, offset)} yet, and a "
            "transaction cannot wait for it: cancel the message without a transaction",
            name=name,
        )
    place_routed(tx, name, [route_log_inside(tx.view, queue.spec, source, offset + 1)])


def _find_in_view(view: View, queue: str, log: str, offset: int) -> PlacedMessage | None:
    """Return the slot of a message that was put; None if the queue does not know the message."""
    state = need_queue(view, queue)
    log_id = view.entity(keys.log_name(log), Name).log_id
    if not log_id:
        return None
    place = bisect_message(view, state, log_id, offset)
    if place is not None:
        return PlacedMessage(place.bucket_id + place.slot, log_id, offset)
    # A waiting message is in a bucket of `alive`, also if this commit has made the bucket. A
    # redriven message is not beside its old neighbours, so the bisection misses it.
    waiting = [keys.bucket(state.queue_id, bucket_id) for bucket_id in state.alive]
    stored = view.find_all(*keys.of_queue(keys.BUCKET, state.queue_id))
    for key in chain(waiting, stored):
        slot = slot_in(view.entity(key, Bucket), log_id, offset)
        if slot is not None:
            return PlacedMessage(keys.pair(key)[1] + slot, log_id, offset)
    return None


def _check_named(command: c.CancelMessage) -> None:
    if (command.id is None) == (command.claim_id is None):
        raise InvalidInput("a message to cancel is named by its id or by its claim id")


def _find_by_id(store: Store, queue: str, id: int) -> PlacedMessage | None:
    """Return the slot of a message that was put; None if the queue does not know the message."""
    log, offset = place_of_put(queue, check_integer("a message's id", id))
    fate = search(Reading(store), queue, log, offset)
    if fate.state == "available" and fate.claim_id is None:
        route_through(store, queue, log, offset)
        fate = search(Reading(store), queue, log, offset)
    if fate.claim_id is None:
        return None
    log_id = store.view(lambda view: view.entity(keys.log_name(log), Name).log_id)
    return PlacedMessage(fate.claim_id, log_id, offset)


def _find_by_claim(view: View, queue: str, claim_id: int) -> PlacedMessage | None:
    """Return the slot of a message, by its number in the queue."""
    bucket_id = bucket_of(check_integer("a claim id", claim_id))
    bucket, slot = find_bucket(view, need_queue(view, queue), bucket_id), claim_id - bucket_id
    for span in bucket.sources(slot, slot + 1):
        return PlacedMessage(claim_id, span.log_id, span.offset)
    return None


def put_and_report(store: Store, command: c.PutReported) -> PutResult:
    """Put a message, unless it is a repeat; report which."""
    while True:
        result = store.run(partial(put_reported, command=command))
        if result is not None:
            return result
        for log in own_logs(command.queue):
            route_through(store, command.queue, log)
