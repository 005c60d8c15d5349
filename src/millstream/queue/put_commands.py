"""Commands that put messages, made from the arguments of a caller's `put` or `put_many`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from millstream.command import Operation
from millstream.errors import InvalidInput
from millstream.format.packing import Batch, Single, pack_many, pack_single
from millstream.header import HeadersLike
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue.commands import PutMessages, PutReported
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.model.routing_marks import Wishes, check_delay, check_wishes
from millstream.record import Producer, Seconds, optional_ms, wall_ms_of


def put_one(
    queue: str,
    value: Any,
    *,
    key: bytes | str | None,
    headers: HeadersLike | None,
    priority: int | None,
    group: str | None,
    dedup: str | None,
    delay: Seconds | None,
    at: datetime | int | None,
    producer: Producer | None,
    limits: Limits,
) -> Operation[int]:
    """Return the command that puts a message."""
    record = pack_single(value, key=key, headers=headers, timestamp=None, limits=limits)
    if priority is None and group is None and dedup is None:
        return put_packed(queue, record, delay=delay, at=at, producer=producer)
    wishes = Wishes(priority, group, dedup)
    check_wishes(wishes)
    return put_packed(queue, record, [wishes], delay=delay, at=at, producer=producer)


def put_batch(
    queue: str,
    values: Iterable[Any],
    *,
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[HeadersLike | None] | None,
    delay: Seconds | None,
    at: datetime | int | None,
    limits: Limits,
    wishes: list[Wishes] | None = None,
    producer: Producer | None = None,
) -> tuple[Operation[int] | None, int]:
    """Return the command that puts a batch, and the number of messages; (None, 0) for an empty
    batch.
    """
    records = pack_many(values, keys=keys, headers=headers, timestamps=None, limits=limits)
    if records is None:
        return None, 0
    count = records.count
    command = put_packed(queue, records, wishes or (), delay=delay, at=at, producer=producer)
    return command, count


def reported(queue: str, command: Operation[int]) -> PutReported:
    """Return the command that puts the message of a `put`, and reports whether it is a repeat."""
    assert isinstance(command, Append | PutMessages)
    if command.producer is not None:
        raise InvalidInput("a put with detail cannot name a producer; use dedup")
    if isinstance(command, Append):
        return PutReported(queue, command.records)
    return PutReported(queue, command.records, command.wishes, command.delay_ms, command.due_ms)


def put_packed(
    queue: str,
    records: Single | Batch,
    wishes: Sequence[Wishes] = (),
    *,
    delay: Seconds | None = None,
    at: datetime | int | None = None,
    producer: Producer | None = None,
) -> Operation[int]:
    """Return the command for packed messages. Messages without wishes or delay are appended to the
    inbox.
    """
    if delay is None and at is None and not wishes:
        return Append(inbox_of(queue), records, producer=producer)
    delay_ms = optional_ms(delay, "delay")
    if delay_ms is not None:
        check_delay(delay_ms)  # here, since the bytes of a request hold no negative number
    return PutMessages(queue, records, [*wishes], delay_ms, due_ms_of(at), producer)


def due_ms_of(at: datetime | int | None) -> int | None:
    """Return the wall time at which a message is due, in milliseconds."""
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise InvalidInput("a time needs a time zone: datetime(..., tzinfo=UTC)")
    return wall_ms_of(at)
