"""The wait for the end of a message: done, failed or cancelled.

A waiter watches the bucket of its message, so only commits that touch this bucket wake the waiter.
An unrouted message has no bucket yet; its waiter watches the queue until the message is routed.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from millstream.errors import NotFound
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.head import Head, Name
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.message import Fate
from millstream.queue.model.own_logs import place_of_put
from millstream.queue.model.slots import AVAILABLE, IN_FLIGHT
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.service.message_fate import search
from millstream.store.sleep import Sleep, Waiting
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store


class _Look(Struct, frozen=True):
    """The state of a message at one look."""

    fate: Fate | None
    """The fate of a message that has ended; None while it waits or is in flight."""
    key: bytes
    """The entity to watch."""
    claim_id: int | None = None


def wait_for_message(store: Store, query: c.WaitForMessage) -> Waiting[Fate | None]:
    """Wait until a message has ended; return None after the timeout, which runs from this call."""
    check_integer("a message's id", query.id)
    timeout_ms = query.timeout_ms
    deadline = None if timeout_ms is None else store.clock.seconds() + timeout_ms / 1000
    return _until_over(store, query, deadline)


def _until_over(
    store: Store, query: c.WaitForMessage, deadline: float | None
) -> Waiting[Fate | None]:
    claim_id: int | None = None
    while True:
        look = _look(store, query, claim_id)
        if look.fate is not None:
            return look.fate
        remaining_s = None if deadline is None else deadline - store.clock.seconds()
        if remaining_s is not None and remaining_s <= 0:
            return None
        claim_id = look.claim_id
        yield Sleep((look.key,), partial(_has_changed, store, query, look), remaining_s)


def _has_changed(store: Store, query: c.WaitForMessage, before: _Look) -> bool:
    return _look(store, query, before.claim_id) != before


def _look(store: Store, query: c.WaitForMessage, claim_id: int | None) -> _Look:
    """Look at a message: at the slot of the last look if it still waits there, else everywhere."""
    store.refresh()
    if claim_id is not None:
        key = store.view(partial(_key_of_unfinished, query=query, claim_id=claim_id))
        if key is not None:
            return _Look(None, key, claim_id)
    log, offset = place_of_put(query.queue, query.id)
    fate = search(Reading(store), query.queue, log, offset)
    if fate.state == "unknown":
        raise store.view(partial(_forgotten, query=query))
    if fate.is_over or fate.claim_id is None:
        return _Look(fate if fate.is_over else None, keys.queue(query.queue))
    key = store.view(partial(_key_of_bucket, query=query, claim_id=fate.claim_id))
    return _Look(None, key, fate.claim_id)


def _key_of_unfinished(view: View, query: c.WaitForMessage, claim_id: int) -> bytes | None:
    """Return the key of a bucket in which the message waits or is in flight; None if the message
    has left the bucket.
    """
    queue, bucket_id = need_queue(view, query.queue), bucket_of(claim_id)
    bucket, slot = find_bucket(view, queue, bucket_id), claim_id - bucket_id
    if slot >= len(bucket.states) or bucket.states[slot] not in (AVAILABLE, IN_FLIGHT):
        return None
    return keys.bucket(queue.queue_id, bucket_id)


def _key_of_bucket(view: View, query: c.WaitForMessage, claim_id: int) -> bytes:
    return keys.bucket(need_queue(view, query.queue).queue_id, bucket_of(claim_id))


def _forgotten(view: View, query: c.WaitForMessage) -> NotFound:
    """Return the error about a message that the queue does not know."""
    log, offset = place_of_put(query.queue, query.id)
    log_id = view.entity(keys.log_name(log), Name).log_id
    queue = need_queue(view, query.queue)
    if not log_id or offset >= view.entity(keys.head(log_id), Head).end:
        why = "no put returned this id"
    else:
        days = queue.spec.done_retention_s / 86_400
        why = (
            "it was dropped as a repeat, was purged, or ended longer ago than the queue remembers "
            f"ended messages (done_retention: {days:,.3g} days)"
        )
    return NotFound(
        f"queue {query.queue!r} does not know message {query.id}: {why}",
        name=query.queue,
        id=query.id,
    )
