"""Putting: the command that brings messages straight to a queue, now or for later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Command
from millstream.errors import InvalidInput
from millstream.format.packing import pack_many, pack_single
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue.commands import PutForLater
from millstream.queue.model.slots import Mark
from millstream.queue.model.spec import KEY, PRIORITY_MAX, QueueSpec
from millstream.queue.rules.sources import inbox_of
from millstream.queue.service.routing import mark_of
from millstream.record import Headers, Item, Producer, Seconds, to_ms


class Wishes(Struct, frozen=True, kw_only=True):
    """How messages are to be treated; what a spec can also read from their headers."""

    priority: int | None = None
    group: str | None = None
    dedup: str | None = None
    delay: Seconds | None = None
    at: datetime | int | None = None

    def __bool__(self) -> bool:
        """Whether there is any; then the queue's spec must be known."""
        return self != Wishes()

    @property
    def later(self) -> bool:
        """Whether messages are not to be claimed at once."""
        return self.delay is not None or self.at is not None

    def times(self) -> Mark:
        """When messages are due."""
        if self.delay is not None and self.at is not None:
            raise InvalidInput("a message has a delay or a time, not both")
        if self.delay is not None:
            return Mark(delay_ms=to_ms(self.delay))
        if isinstance(self.at, datetime):
            if self.at.tzinfo is None:
                raise InvalidInput("a time needs a time zone: datetime(..., tzinfo=UTC)")
            return Mark(due_ms=round(self.at.timestamp() * 1000))
        return Mark(due_ms=self.at)


def put_one(
    queue: str,
    spec: QueueSpec | None,
    value: Any,
    *,
    key: bytes | str | None,
    headers: Headers | None,
    producer: Producer | None,
    wishes: Wishes,
    limits: Limits,
) -> Command[int]:
    """The command that puts one message."""
    if spec is not None:
        key, headers = addressed(queue, spec, key, headers, wishes)
    record = pack_single(value, key=key, headers=headers, timestamp=None, limits=limits)
    if spec is None or not wishes.later:
        return Append(inbox_of(queue), record, producer=producer)
    if producer is not None:
        raise _for_later_by_producer()
    return PutForLater(queue, record, [marked(spec, key, headers, wishes.times())])


def put_batch(
    queue: str,
    spec: QueueSpec | None,
    values: Iterable[Any],
    *,
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[Headers | None] | None,
    wishes: Wishes,
    limits: Limits,
    producer: Producer | None = None,
) -> tuple[Command[int] | None, int]:
    """The command that puts a batch, and how many messages it has; None for an empty one."""
    rows = values if isinstance(values, str | bytes | bytearray | memoryview) else list(values)
    records = pack_many(rows, keys=keys, headers=headers, timestamps=None, limits=limits)
    if records is None:
        return None, 0
    count = records.count
    if spec is None or not wishes.later:
        return Append(inbox_of(queue), records, producer=producer), count
    if producer is not None:
        raise _for_later_by_producer()
    times = wishes.times()
    items = [row for row in rows if isinstance(row, Item)]
    if items:
        keys, headers = [item.key for item in items], [item.headers for item in items]
    marks = [
        marked(spec, keys[i] if keys else None, headers[i] if headers else None, times)
        for i in range(count)
    ]
    return PutForLater(queue, records, marks), count


def _for_later_by_producer() -> InvalidInput:
    return InvalidInput("a message for later cannot name a producer; use dedup")


def marked(spec: QueueSpec, key: bytes | str | None, headers: Headers | None, times: Mark) -> Mark:
    """What routing would find out about a message, with when it is due."""
    data = key.encode() if isinstance(key, str) else key
    found = mark_of(spec, data, headers or {})
    return replace(found, delay_ms=times.delay_ms, due_ms=times.due_ms)


def addressed(
    queue: str,
    spec: QueueSpec,
    key: bytes | str | None,
    headers: Headers | None,
    wishes: Wishes,
) -> tuple[bytes | str | None, Headers | None]:
    """The key and headers from which the queue will read what is wished for."""
    priority = wishes.priority
    if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
        raise InvalidInput(f"a priority is an integer from 0 to {PRIORITY_MAX}, not {priority!r}")
    found = dict(headers or {})
    for what, value in (
        ("priority", wishes.priority),
        ("group", wishes.group),
        ("dedup", wishes.dedup),
    ):
        by = getattr(spec, f"{what}_by")
        if value is None:
            continue
        if not by:
            raise InvalidInput(
                f"queue {queue!r} does not look at a {what}: specify it with {what}_by='header'"
            )
        if by == KEY:
            if key is not None and key not in (value, str(value).encode()):
                raise InvalidInput(f"the key of a message is its {what} in queue {queue!r}")
            key = str(value)
        else:
            found[by] = value
    return key, found or headers
