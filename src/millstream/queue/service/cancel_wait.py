"""The wait of workers for cancel requests.

A waiter watches the requests of its queue, an entity that only cancels change. So claims and
acknowledgements wake no waiter.
"""

from __future__ import annotations

from functools import partial

from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.cancel_requests import CancelRequests, RequestedCancels
from millstream.queue.model.slots import IN_FLIGHT
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.store.sleep import Sleep, Waiting
from millstream.store.state.view import View
from millstream.store.store import Store


def wait_for_cancels(store: Store, query: c.WaitForCancels) -> Waiting[RequestedCancels | None]:
    """Wait for requests beyond the first `seen`; the timeout runs from this call."""
    check_integer("seen", query.seen)
    timeout_ms = query.timeout_ms
    deadline = None if timeout_ms is None else store.clock.seconds() + timeout_ms / 1000
    return _until_requested(store, query, deadline)


def _until_requested(
    store: Store, query: c.WaitForCancels, deadline: float | None
) -> Waiting[RequestedCancels | None]:
    while True:
        key, requested = _look(store, query)
        if requested is not None:
            return requested
        remaining_s = None if deadline is None else deadline - store.clock.seconds()
        if remaining_s is not None and remaining_s <= 0:
            return None
        yield Sleep((key,), partial(_has_changed, store, query), remaining_s)


def _has_changed(store: Store, query: c.WaitForCancels) -> bool:
    return _look(store, query)[1] is not None


def _look(store: Store, query: c.WaitForCancels) -> tuple[bytes, RequestedCancels | None]:
    """Return the key to watch, and the open requests if any is new to the caller."""
    store.refresh()
    return store.view(partial(_requested, query=query))


def _requested(view: View, query: c.WaitForCancels) -> tuple[bytes, RequestedCancels | None]:
    queue = need_queue(view, query.queue)
    key = keys.cancels(queue.queue_id)
    requests = view.entity(key, CancelRequests)
    if requests.total == query.seen:  # a smaller number belongs to a queue made again
        return key, None
    claims = []
    for claim_id in requests.claims:
        bucket_id = bucket_of(claim_id)
        bucket, slot = find_bucket(view, queue, bucket_id), claim_id - bucket_id
        if slot < len(bucket.states) and bucket.states[slot] == IN_FLIGHT:
            claims.append(claim_id)
    return key, RequestedCancels(claims, requests.total)
