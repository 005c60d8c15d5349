"""Replacing: a new message takes the position of a failed message, in a single commit.

The new message goes into the queue's log for later, so this rule places it, not routing. Deduplication is
skipped, because the new message would count as a repeat of the failed message.
"""

from __future__ import annotations

from millstream.errors import Conflict
from millstream.format.headers import labels_of
from millstream.format.ids import bucket_of
from millstream.log.commands import Append
from millstream.log.rules import operations as logs
from millstream.queue import commands as c
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.bucket_changes import Removed
from millstream.queue.model.routing_marks import mark_of
from millstream.queue.model.slots import FAILED, Span
from millstream.queue.rules.aging import note_removed
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.placement import Arrival, admit
from millstream.queue.rules.sources import LATER_ID, later_of
from millstream.store.commit.transaction import WriteTransaction


def replace_failed(tx: WriteTransaction, command: c.ReplaceFailed) -> int:
    """Replace a failed message; return the id of the new message, as `put` does."""
    ledger = Ledger(tx, command.queue)
    queue, bucket_id = ledger.queue, bucket_of(command.claim_id)
    slot, bucket = command.claim_id - bucket_id, ledger.bucket(bucket_id)
    if slot >= len(bucket.states) or bucket.states[slot] != FAILED:
        raise Conflict(
            f"message {command.claim_id} of queue {command.queue!r} is not failed, so it cannot be "
            "replaced: it was redriven, replaced or purged, or never failed; look at the failed ones",
            name=command.queue,
            claim_id=command.claim_id,
        )
    past = trials_of(bucket, slot, slot + 1)[0]
    ledger.change_bucket(bucket_id, Removed([(slot, slot + 1)]))
    ledger.change_alive(bucket_id, -1)
    ledger.counts.failed -= 1
    note_removed(tx, queue.queue_id, bucket_id)
    first_id = tx.delta.next_id
    offset = logs.append(tx, Append(later_of(queue.name), command.record))
    log_id, head = logs.need_log(tx, later_of(queue.name))
    if head.next_at(queue.positions.get(log_id, 0)) != offset:
        raise Conflict(
            f"another producer puts messages for later to queue {command.queue!r} at this moment; "
            "replace the message again",
            name=command.queue,
            claim_id=command.claim_id,
        )
    ledger.positions.append((log_id, offset + 1))
    (label,) = labels_of(command.record)
    mark = mark_of(queue.spec, *label)
    span = Span(0, 1, log_id, offset, first_id, tx.wall_ms)
    admit(ledger, [Arrival(span, mark.priority, mark.group, past=past)])
    ledger.close()
    return LATER_ID + offset
