"""Routing marks: the facts a queue reads from a message's key and headers, and how `put` sets them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.format.packing import check_timestamp
from millstream.header import HeaderMapping, Headers
from millstream.log.model.names import check_text
from millstream.queue.model.slots import RoutingMark
from millstream.queue.model.spec import DELAY_MS_MAX, KEY, PRIORITY_MAX, QueueSpec

GROUP_CHARS_MAX = 200
"""A longer group name is replaced by its digest."""


class Wishes(Struct, frozen=True, omit_defaults=True):
    """The priority, group and dedup id that a `put` gives a message. They are stored in the headers
    that the queue's spec names.
    """

    priority: int | None = None
    group: str | None = None
    dedup: str | None = None


def mark_of(spec: QueueSpec, key: bytes | None, headers: HeaderMapping) -> RoutingMark:
    """Return the routing mark of a message: priority, group and dedup digest."""
    group, digest = "", b""
    if spec.group_by:
        group = _named(spec.group_by, key, headers) or ""
    if spec.dedup_by:
        dedup_id = _named(spec.dedup_by, key, headers)
        if dedup_id is not None:
            dedup_id = _letter_id(headers) or dedup_id
            digest = digest_of(dedup_id)
    priority = headers.get(spec.priority_by) if spec.priority_by else 0
    if type(priority) is not int:
        priority = 0
    elif not 0 <= priority <= PRIORITY_MAX:
        priority = max(0, min(priority, PRIORITY_MAX))
    return RoutingMark(priority, group, digest=digest)


def digest_of(dedup_id: str) -> bytes:
    """Return the digest by which a queue remembers a dedup id."""
    return blake2b(dedup_id.encode(), digest_size=16).digest()


def _letter_id(headers: HeaderMapping) -> str | None:
    """Return what a dead letter repeats: only itself, though it has its message's headers."""
    log, offset = headers.get("dead-letter-log"), headers.get("dead-letter-offset")
    return f"{log}\0{offset}" if type(log) is str and type(offset) is int else None


def marks_of(
    spec: QueueSpec,
    keys: Sequence[bytes | None],
    headers: Sequence[HeaderMapping],
    indexes: Sequence[int],
) -> list[RoutingMark]:
    """Return the routing marks of some messages; messages that share their headers share a mark."""
    if KEY in (spec.group_by, spec.dedup_by):
        return [mark_of(spec, keys[index], headers[index]) for index in indexes]
    distinct = {id(headers[index]): headers[index] for index in indexes}
    marks = {number: mark_of(spec, None, shared) for number, shared in distinct.items()}
    return [marks[id(headers[index])] for index in indexes]


def _named(by: str, key: bytes | None, headers: HeaderMapping) -> str | None:
    """Return a header, or the key, as text. None if the header is missing or holds bytes."""
    if by == KEY:
        value: object = None if key is None else key.decode(errors="backslashreplace")
    else:
        value = headers.get(by)
    if value is None or isinstance(value, bytes):
        return None
    text = value if type(value) is str else str(value)
    return text if len(text) <= GROUP_CHARS_MAX else blake2b(text.encode()).hexdigest()


def addressed(
    queue: str, spec: QueueSpec, wishes: Wishes, key: bytes | None, headers: Headers
) -> tuple[bytes | str | None, Headers]:
    """Return the key and headers from which the queue will read the wishes."""
    check_wishes(wishes)
    new_key: bytes | str | None = key
    new_headers = headers
    for wish in ("priority", "group", "dedup"):
        value, by = getattr(wishes, wish), getattr(spec, f"{wish}_by")
        if value is None:
            continue
        if not by:
            raise InvalidInput(
                f"queue {queue!r} does not look at a {wish}: specify it with {wish}_by='header'"
            )
        if by != KEY:
            new_headers = new_headers.replaced(by, value)
        elif new_key is None or new_key in (value, value.encode()):
            new_key = value
        else:
            raise InvalidInput(f"the key of a message is its {wish} in queue {queue!r}")
    return new_key, new_headers


def check_wishes(wishes: Wishes) -> None:
    """Refuse a wish that no queue can read from a message."""
    priority = wishes.priority
    if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
        raise InvalidInput(f"a priority is an integer from 0 to {PRIORITY_MAX}, not {priority!r}")
    for wish in ("group", "dedup"):
        if (value := getattr(wishes, wish)) is not None:
            check_text(wish, value)


def check_later(delay_ms: int | None, due_ms: int | None) -> None:
    """Refuse a delay or a time of a message for later that no queue can keep."""
    if delay_ms is not None and due_ms is not None:
        raise InvalidInput("a message has a delay or a time, not both")
    if due_ms is not None:
        check_timestamp(due_ms)
    if delay_ms is not None:
        check_delay(delay_ms)


def check_delay(delay_ms: int) -> None:
    """Refuse a delay that no queue can keep; the error counts in seconds, as callers do."""
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        most = DELAY_MS_MAX // 1000
        raise InvalidInput(f"a delay is from 0 to {most:,} seconds, not {delay_ms / 1000:,}")
