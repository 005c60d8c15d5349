"""Marking: what a queue reads from a message's key and headers, and how it gets there; pure."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.header import HeaderMapping, Headers
from millstream.log.model.names import check_text
from millstream.queue.model.slots import RoutingMark
from millstream.queue.model.spec import KEY, PRIORITY_MAX, QueueSpec

GROUP_CHARS_MAX = 200
"""A longer name of a group is known by its digest."""


class Wishes(Struct, frozen=True, omit_defaults=True):
    """What one message is to have: it goes into the headers that the queue's spec names for it."""

    priority: int | None = None
    group: str | None = None
    dedup: str | None = None


def mark_of(spec: QueueSpec, key: bytes | None, headers: HeaderMapping) -> RoutingMark:
    """What a queue wants to know of a message: its priority, its group, how a repeat is known."""
    priority = headers.get(spec.priority_by) if spec.priority_by else 0
    digest = b""
    if spec.dedup_by:
        known = _named(spec.dedup_by, key, headers)
        if known is not None:
            digest = blake2b(known.encode(), digest_size=16).digest()
    return RoutingMark(
        min(max(priority, 0), PRIORITY_MAX) if type(priority) is int else 0,
        (_named(spec.group_by, key, headers) or "") if spec.group_by else "",
        digest=digest,
    )


def _named(by: str, key: bytes | None, headers: HeaderMapping) -> str | None:
    """A header, or the key, as text; None if there is none, or the header holds bytes."""
    if by == KEY:
        found: object = None if key is None else key.decode(errors="backslashreplace")
    else:
        found = headers.get(by)
    if found is None or isinstance(found, bytes):
        return None
    text = str(found)
    return text if len(text) <= GROUP_CHARS_MAX else blake2b(text.encode()).hexdigest()


def addressed(
    queue: str, spec: QueueSpec, wishes: Wishes, key: bytes | None, headers: Headers
) -> tuple[bytes | str | None, Headers]:
    """The key and headers from which the queue will read what is wished for."""
    check_wishes(wishes)
    new: bytes | str | None = key
    found = headers
    for what in ("priority", "group", "dedup"):
        value, by = getattr(wishes, what), getattr(spec, f"{what}_by")
        if value is None:
            continue
        if not by:
            raise InvalidInput(
                f"queue {queue!r} does not look at a {what}: specify it with {what}_by='header'"
            )
        if by != KEY:
            found = found.replaced(by, value)
        elif new is None or new in (value, value.encode()):
            new = value
        else:
            raise InvalidInput(f"the key of a message is its {what} in queue {queue!r}")
    return new, found


def check_wishes(wishes: Wishes) -> None:
    """Refuse a wish that no queue can read from a message."""
    priority = wishes.priority
    if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
        raise InvalidInput(f"a priority is an integer from 0 to {PRIORITY_MAX}, not {priority!r}")
    for what in ("group", "dedup"):
        if (value := getattr(wishes, what)) is not None:
            check_text(what, value)
