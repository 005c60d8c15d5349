"""Routing marks: the facts a queue reads from a message's key and headers, and how `put` sets them."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.header import HeaderMapping, Headers
from millstream.log.model.names import check_text
from millstream.queue.model.slots import RoutingMark
from millstream.queue.model.spec import KEY, PRIORITY_MAX, QueueSpec

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
    priority = headers.get(spec.priority_by) if spec.priority_by else 0
    digest = b""
    if spec.dedup_by:
        dedup_id = _named(spec.dedup_by, key, headers)
        if dedup_id is not None:
            digest = blake2b(dedup_id.encode(), digest_size=16).digest()
    return RoutingMark(
        min(max(priority, 0), PRIORITY_MAX) if type(priority) is int else 0,
        (_named(spec.group_by, key, headers) or "") if spec.group_by else "",
        digest=digest,
    )


def _named(by: str, key: bytes | None, headers: HeaderMapping) -> str | None:
    """Return a header, or the key, as text. None if the header is missing or holds bytes."""
    if by == KEY:
        value: object = None if key is None else key.decode(errors="backslashreplace")
    else:
        value = headers.get(by)
    if value is None or isinstance(value, bytes):
        return None
    text = str(value)
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
