"""Puts: messages get the headers that their queue reads, and messages for later are placed.

A failed message may be replaced by a new message. The new message goes into the queue's log for later,
so the rule places it, not routing. Deduplication is skipped, because the new message would count as a
repeat of the failed message.

A put that must know about repeats is placed in its own commit, because routing would decide later: a
put that asks for a report, and a put with a dedup id if the queue holds ids by the state of messages.

The logs of a queue (inbox and later) take records only while the queue exists: a guard checks this
before each append.
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.format.headers import labels_of, relabelled
from millstream.format.ids import bucket_of
from millstream.format.packing import Batch, Single
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.log.model.head import Head
from millstream.log.rules import operations as logs
from millstream.log.rules.guards import GuardedRule, LogGuard
from millstream.queue import commands as c
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.bucket_changes import Removed
from millstream.queue.model.grants import Routed
from millstream.queue.model.message import PutResult
from millstream.queue.model.own_logs import (
    INBOX,
    LATER,
    LATER_ID,
    inbox_of,
    later_of,
    own_logs,
    put_id,
)
from millstream.queue.model.routing_marks import Wishes, addressed, check_later, mark_of
from millstream.queue.model.slots import FAILED, Span
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import note_removed
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.notes import drop_notes
from millstream.queue.rules.placement import Arrival, admit, place
from millstream.queue.rules.repeats import UNKNOWN_CLAIM, Repeats, Seen
from millstream.store.commit.transaction import WriteTransaction

PackedRecords = Single | Batch


def check_queue(tx: WriteTransaction, command: Append) -> None:
    """Refuse an append to a log of a missing queue, because no consumer would get the records.

    A log that is written elsewhere is left to the rules of copies.
    """
    name = command.log.partition(":")[2]
    if not tx.entity(keys.queue(name), QueueState).exists():
        log = logs.find_log(tx, command.log)
        if log is None or not log[1].owner:
            raise no_queue(name)


APPEND_GUARD = LogGuard((INBOX, LATER), check_queue)
"""Runs before each append to the logs that belong to a queue."""

append: GuardedRule[int] = GuardedRule(logs.append, APPEND_GUARD)
"""For rules above the logs that append to a log whose name a user has chosen."""


class Putting:
    """The operation of a put. Claims in the same commit group run after it."""

    __slots__ = ("command",)

    order = 0
    """Before the claims of its group, which may get its messages."""

    def __init__(self, command: c.PutMessages) -> None:
        self.command = command

    @property
    def appends_to(self) -> str:
        """The log whose new records a claim in the same commit may take; "" for messages for later."""
        return "" if self.command.is_for_later else inbox_of(self.command.queue)

    def __call__(self, tx: WriteTransaction) -> int:
        """Run the put."""
        return put(tx, self.command)


def put(tx: WriteTransaction, command: c.PutMessages) -> int:
    """Append messages to a queue's inbox, or to its log for later; return the id of the first."""
    ledger = Ledger(tx, command.queue)
    records = _addressed_records(ledger.queue, command.records, command.wishes, tx.limits)
    if command.is_for_later:
        check_later(command.delay_ms, command.due_ms)
        return _put_and_place(ledger, records, command)
    holds = bool(ledger.queue.spec.dedup_while and command.wishes)
    if holds and command.producer is None and _is_routed(ledger, inbox_of(command.queue)):
        return _put_and_place(ledger, records, command)
    inbox = inbox_of(command.queue)
    return logs.append(tx, Append(inbox, records, producer=command.producer))


def put_reported(tx: WriteTransaction, command: c.PutReported) -> PutResult | None:
    """Put a message unless it is a repeat; None if earlier messages must be routed first."""
    ledger = Ledger(tx, command.queue)
    queue, spec = ledger.queue, ledger.queue.spec
    if (count := _count(command.records)) != 1:
        raise InvalidInput(f"a put with detail is of a single message, not of {count}")
    put_command = c.PutMessages(
        command.queue, command.records, command.wishes, command.delay_ms, command.due_ms
    )
    if put_command.is_for_later:
        check_later(command.delay_ms, command.due_ms)
    if not spec.dedup_by:
        return PutResult(id=put(tx, put_command))
    if not all(_is_routed(ledger, log) for log in own_logs(command.queue)):
        return None
    records = _addressed_records(queue, command.records, command.wishes, tx.limits)
    (label,) = labels_of(records)
    digest = mark_of(spec, *label).digest
    original = Repeats(tx, queue).original(digest, tx.wall_ms) if digest else None
    if original is None:
        return PutResult(id=_put_and_place(ledger, records, put_command))
    ledger.counts.duplicates += 1
    ledger.close()
    return PutResult(id=_id_of(ledger, original), repeated=True)


def put_fresh(tx: WriteTransaction, command: c.PutFresh) -> int | None:
    """Put messages of which none is a repeat; None if one is, or if earlier messages must be routed."""
    ledger = Ledger(tx, command.queue)
    queue, spec = ledger.queue, ledger.queue.spec
    if not all(_is_routed(ledger, log) for log in own_logs(command.queue)):
        return None
    if spec.dedup_by:
        digests = [mark_of(spec, *label).digest for label in labels_of(command.records)]
        known, repeats = [digest for digest in digests if digest], Repeats(tx, queue)
        if len({*known}) < len(known):
            return None
        if any(repeats.original(digest, tx.wall_ms) is not None for digest in known):
            return None
    return _put_and_place(ledger, command.records, c.PutMessages(command.queue, command.records))


def _addressed_records(
    queue: QueueState, records: PackedRecords, wishes: list[Wishes], limits: Limits
) -> PackedRecords:
    """Return records with the key and headers from which the queue will read the wishes."""
    if not wishes:
        return records
    count = _count(records)
    if len(wishes) != count:
        raise InvalidInput(f"one wish per message is expected: {count}, not {len(wishes)}")
    wishes_and_labels = zip(wishes, labels_of(records), strict=True)
    labels = [addressed(queue.name, queue.spec, wish, *label) for wish, label in wishes_and_labels]
    return relabelled(records, labels, limits)


def _count(records: PackedRecords) -> int:
    return records.count if isinstance(records, Batch) else 1


def _is_routed(ledger: Ledger, log: str) -> bool:
    """Return whether the queue has looked at all records of one of its own logs."""
    found_log = logs.find_log(ledger.tx, log)
    if found_log is None:
        return True
    log_id, head = found_log
    return bool(head.next_at(ledger.queue.positions.get(log_id, 0)) >= head.end)


def _put_and_place(ledger: Ledger, records: PackedRecords, command: c.PutMessages) -> int:
    """Append messages and place them in the same commit; return the id of the first.

    If earlier messages of the log are not routed, the messages are left to routing. The repeat of a
    producer places nothing.
    """
    tx, queue, count = ledger.tx, ledger.queue, _count(records)
    log = later_of(queue.name) if command.is_for_later else inbox_of(queue.name)
    first_id = tx.delta.next_id
    first = logs.append(tx, Append(log, records, producer=command.producer))
    if tx.delta.next_id == first_id:
        return LATER_ID + first if command.is_for_later else first
    log_id, head = logs.need_log(tx, log)
    if head.next_at(queue.positions.get(log_id, 0)) == first:
        marks = [
            replace(mark_of(queue.spec, *label), delay_ms=command.delay_ms, due_ms=command.due_ms)
            for label in labels_of(records)
        ]
        spans = [Span(0, count, log_id, first, first_id, tx.wall_ms)]
        place(ledger, [Routed(log_id, first, first + count, spans, marks)])
        ledger.close()
    return LATER_ID + first if command.is_for_later else first


def _id_of(ledger: Ledger, seen: Seen) -> int | None:
    """Return the id of a message that was put; None if the bucket is forgotten."""
    if seen.claim_id == UNKNOWN_CLAIM:
        return None
    bucket_id = bucket_of(seen.claim_id)
    slot, bucket = seen.claim_id - bucket_id, ledger.bucket(bucket_id)
    for span in bucket.sources(slot, slot + 1):
        head = ledger.tx.entity(keys.head(span.log_id), Head)
        return put_id(ledger.queue.name, head.name, span.offset)
    return None


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
    drop_notes(tx, queue.queue_id, bucket_id, [(slot, slot + 1)])
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
