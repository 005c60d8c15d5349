"""Finds a message by its dedup id: the rows that refuse repeats lead to the message."""

from __future__ import annotations

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.head import Head
from millstream.queue.commands import FindByDedup
from millstream.queue.model.message import FoundMessage
from millstream.queue.model.own_logs import put_id
from millstream.queue.model.routing_marks import digest_of
from millstream.queue.model.slots import AVAILABLE, IN_FLIGHT
from millstream.queue.rules.lookup import find_bucket, need_queue
from millstream.queue.rules.repeats import NO_CLAIM, decode_seen
from millstream.queue.service.message_fate import fate_in
from millstream.store.state.view import View


def find_by_dedup(view: View, query: FindByDedup) -> FoundMessage | None:
    """Return the newest message with a dedup id that has not ended."""
    queue = need_queue(view, query.queue)
    if not queue.spec.dedup_by:
        raise InvalidInput(
            f"queue {query.queue!r} knows no dedup ids: specify it with dedup_by='header'",
            name=query.queue,
        )
    remembered = decode_seen(view.get(keys.seen(queue.queue_id, digest_of(query.dedup))))
    for claim_id in sorted((each.claim_id for each in remembered), reverse=True):
        if claim_id in NO_CLAIM:
            continue
        bucket_id = bucket_of(claim_id)
        bucket, slot = find_bucket(view, queue, bucket_id), claim_id - bucket_id
        if slot >= len(bucket.states) or bucket.states[slot] not in (AVAILABLE, IN_FLIGHT):
            continue
        (span,) = bucket.sources(slot, slot + 1)
        head = view.entity(keys.head(span.log_id), Head)
        id = put_id(query.queue, head.name, span.offset)
        if id is not None:
            return FoundMessage(id, fate_in(view, queue, bucket, bucket_id, slot))
    return None
