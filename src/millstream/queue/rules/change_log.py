"""The log of changes: a record for each change of a message's state, in the commit of the change.

The state of a message changes by a change of its bucket alone, and the ledger hands each change of a
bucket to this module before it is applied. So no rule of the queue can forget a record, and a change and
its record are stored together or not at all. Two fast ways change buckets without a ledger (`stride`,
`arrivals`); a queue with a log of changes takes neither of them.

If the log cannot take records (it is a copy, or held by a staging handle), the operation on the queue is
refused: a gap in the log would make every report wrong without a sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import Conflict, Locked, MillstreamError, StoreError
from millstream.format import keys
from millstream.format.packing import pack_many
from millstream.log.commands import Append, DeleteLog
from millstream.log.model.head import Head
from millstream.log.rules import operations as logs
from millstream.log.rules.guards import LogGuard
from millstream.log.rules.schemas import set_on_logs
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.bucket_changes import (
    Cancelled,
    Claimed,
    Ended,
    Placed,
    Removed,
    Withdrawn,
)
from millstream.queue.model.message_change import CHANGE_SCHEMA, MessageChange
from millstream.queue.model.slots import (
    AVAILABLE,
    CANCELLED,
    DONE,
    FAILED,
    IN_FLIGHT,
    Slots,
    Span,
)
from millstream.queue.rules.lookup import all_queues
from millstream.store.commit.transaction import WriteTransaction

if TYPE_CHECKING:
    from millstream.queue.model.state import QueueState

EXPIRED = "lease expired"
"""The reason of an attempt whose lease ended."""

BATCH_RECORDS = 10_000
"""The most records of one append."""

_ENDS: dict[int, tuple[Any, Any]] = {
    DONE: ("done", "done"),
    FAILED: ("failed", "failed"),
    CANCELLED: ("cancelled", "cancelled"),
    AVAILABLE: ("released", "available"),
}
"""The name of a change and the state after it, by the state that an attempt ends in."""


def prepare(tx: WriteTransaction, log: str) -> None:
    """Make the log of changes with its schema; raise if the log cannot hold changes."""
    set_on_logs(tx, [log], CHANGE_SCHEMA, mode="enforce", force=False)


def refuse_delete(tx: WriteTransaction, command: DeleteLog) -> None:
    """Refuse to delete a log that a queue keeps its changes in: the next change would make it again."""
    if logs.find_log(tx, command.log) is None:
        return
    users = [queue.name for queue in all_queues(tx.view) if queue.spec.changes == command.log]
    if users:
        more = f" and {len(users) - 1:,} more" if len(users) > 1 else ""
        raise Conflict(
            f"queue {users[0]!r}{more} keeps its changes in log {command.log!r}, so the log was not "
            "deleted: alter the queue first (changes=''); `truncate` deletes old changes alone",
            name=users[0],
            log=command.log,
        )


DELETE_GUARD = LogGuard(("",), refuse_delete)
"""Runs before a log of any name is deleted."""


def append_changes(tx: WriteTransaction, queue: QueueState, changes: list[MessageChange]) -> None:
    """Append records to the log of changes of a queue, with the message's id as their key."""
    log = queue.spec.changes
    size = min(BATCH_RECORDS, tx.limits.batch_records_max)
    try:
        if logs.find_log(tx, log) is None:
            prepare(tx, log)
        for start in range(0, len(changes), size):
            page = changes[start : start + size]
            records = pack_many(
                [msgspec.json.encode(change) for change in page],
                keys=[f"{change.queue}:{change.message}" for change in page],
                headers=None,
                timestamps=None,
                limits=tx.limits,
            )
            assert records is not None
            logs.append(tx, Append(log, records))
    except (StoreError, Locked):
        raise
    except MillstreamError as error:
        raise Conflict(
            f"queue {queue.name!r} keeps its changes in log {log!r}, which takes no record now, so the "
            f"operation was refused: {error.message}. Free the log, or alter the queue: changes=''",
            name=queue.name,
            log=log,
        ) from error


def changes_of(
    tx: WriteTransaction, queue: QueueState, bucket_id: int, bucket: Bucket, change: object
) -> Iterator[MessageChange]:
    """Yield the records of a change of a bucket; `bucket` is the bucket before the change."""
    epoch_ms = tx.state.time.epoch_ms()

    def record(span: Span, slot: int, name: Any, state: Any, **details: Any) -> MessageChange:
        return MessageChange(
            queue=queue.name,
            message=bucket_id + slot,
            log=tx.entity(keys.head(span.log_id), Head).name,
            log_offset=span.offset + slot - span.slot,
            change=name,
            state=state,
            **{"at": tx.wall_ms, **details},
        )

    match change:
        case Placed():
            dues = _dues(change, epoch_ms)
            for span, slot in _slots_of(change.spans):
                if slot in change.past:
                    yield record(span, slot, "redriven", "available", until=dues.get(slot))
                else:
                    at = span.at_ms or tx.wall_ms  # when it was put, however late it is routed
                    yield record(span, slot, "put", "available", at=at, until=dues.get(slot))
        case Claimed():
            until = change.until_ms + epoch_ms
            for span, slot in _in_ranges(bucket, change.ranges):
                attempt = bucket.attempts[slot] + 1
                yield record(
                    span,
                    slot,
                    "claimed",
                    "in_flight",
                    attempt=attempt,
                    until=until,
                    consumer=change.consumer,
                )
        case Ended():
            name, state = _ENDS[change.state]
            name = "expired" if change.state == AVAILABLE and change.reason == EXPIRED else name
            due = change.due_ms + epoch_ms if change.due_ms > tx.store_ms else None
            for span, slot in _in_ranges(bucket, change.ranges):
                attempt = bucket.attempts[slot]
                yield record(
                    span, slot, name, state, attempt=attempt, until=due, reason=change.reason
                )
        case Cancelled():
            for span, slot in _in_ranges(bucket, change.ranges):
                yield record(span, slot, "cancelled", "cancelled", attempt=bucket.attempts[slot])
        case Removed():
            for span, slot in _in_ranges(bucket, change.ranges):
                yield record(span, slot, "removed", "removed", attempt=bucket.attempts[slot])
        case Withdrawn():
            for span, slot in _slots_of(bucket.spans):
                is_lost = (
                    span.log_id == change.log_id and span.offset + slot - span.slot >= change.at
                )
                if is_lost and bucket.states[slot] in (AVAILABLE, IN_FLIGHT):
                    yield record(span, slot, "removed", "removed", attempt=bucket.attempts[slot])
        case _:
            pass  # a longer lease, or a message whose retention is over: its state stays


def _dues(change: Placed, epoch_ms: int) -> dict[int, int]:
    """Return the wall times at which placed messages become claimable, where that is later."""
    dues = {slot: due_ms + epoch_ms for slot, due_ms in change.dues.items()}
    for start, stop, due_ms in change.delays:
        dues.update(dict.fromkeys(range(start, stop), due_ms + epoch_ms))
    return dues


def _in_ranges(bucket: Bucket, ranges: Iterable[Slots]) -> Iterator[tuple[Span, int]]:
    for start, stop in ranges:
        yield from _slots_of(bucket.sources(start, stop))


def _slots_of(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    for span in spans:
        for slot in range(span.slot, span.slot + span.count):
            yield span, slot
