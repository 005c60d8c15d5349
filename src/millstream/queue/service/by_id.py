"""Commands about one message by its id: cancel it, put it and report a repeat.

Both need the place of messages in the queue, so unrouted messages of the queue's own logs are routed
first, in commits of their own. The last commit checks that nothing has changed meanwhile; otherwise
the caller looks again.
"""

from __future__ import annotations

from functools import partial

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.head import Name
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.message import PutResult
from millstream.queue.model.own_logs import own_logs, place_of_put
from millstream.queue.rules.cancelling import PlacedMessage, cancel_placed
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.rules.puts import put_reported
from millstream.queue.service.backlog import route_through
from millstream.queue.service.message_fate import search
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store


def cancel_message(store: Store, command: c.CancelMessage) -> bool:
    """Cancel a message that waits; return whether the message is cancelled."""
    if (command.id is None) == (command.claim_id is None):
        raise InvalidInput("a message to cancel is named by its id or by its claim id")
    store.refresh()
    find_by_claim = partial(_find_by_claim, queue=command.queue, claim_id=command.claim_id or 0)
    while True:
        if command.id is not None:
            placed = _find_by_id(store, command.queue, command.id)
        else:
            placed = store.view(find_by_claim)
        if placed is None:
            return False
        is_cancelled = store.run(partial(cancel_placed, queue=command.queue, message=placed))
        if is_cancelled is not None:
            return is_cancelled
        if command.id is None:
            return False  # the message has left its slot; only its id leads to another slot


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
