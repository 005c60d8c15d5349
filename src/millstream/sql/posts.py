"""Posts for the SQL inbox, made from the arguments of a Python caller.

A post is a row of `millstream_inbox`. It is checked here as `Queue.put` checks a message, so that an
error is raised at the call, and not later in another process. The message equals
the message of `Queue.put`: the headers say whether the value is text or JSON.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import msgspec

from millstream.clock import SystemClock
from millstream.engine.sqlite.schema import INBOX
from millstream.errors import CannotOpen, InvalidInput
from millstream.format.header_cells import CONTENT_TYPE
from millstream.format.packing import JSON, pack_single, pack_value
from millstream.header import HeadersLike, as_plain
from millstream.limits import Limits
from millstream.log.model.names import check_integer, check_name
from millstream.queue.model.routing_marks import Wishes, check_wishes
from millstream.record import Seconds, to_ms, wall_ms_of

NO_TABLE = f"no such table: {INBOX}"
"""SQLite's message if a database has no inbox."""


class InboxPost(NamedTuple):
    """The columns of a post, in the order of `POST_COLUMNS`."""

    queue: str | None
    log: str | None
    value: str | bytes
    headers: str | None
    key: str | bytes | None
    deliver_at: int | None = None
    message_group: str | None = None
    priority: int | None = None
    dedup: str | None = None


POST_COLUMNS = InboxPost._fields


class RecordOptions(TypedDict, total=False):
    """The options of `append` in a transaction of the application; as of `Log.append`."""

    key: bytes | str | None
    headers: HeadersLike | None


class MessageOptions(RecordOptions, total=False):
    """The options of `put` in a transaction of the application; as of `Queue.put`."""

    priority: int | None
    group: str | None
    dedup: str | None
    delay: Seconds | None
    deliver_at: datetime | int | None
    """A time with a time zone, or milliseconds since 1970."""


def message_post(
    queue: str,
    value: Any,
    *,
    key: bytes | str | None = None,
    headers: HeadersLike | None = None,
    priority: int | None = None,
    group: str | None = None,
    dedup: str | None = None,
    delay: Seconds | None = None,
    deliver_at: datetime | int | None = None,
) -> InboxPost:
    """Return the post of a message for a queue. Raises `InvalidInput`."""
    check_name(queue, "queue")
    check_wishes(Wishes(priority, group, dedup))
    return InboxPost(
        queue,
        None,
        *_content(value, key, headers),
        _wall_ms(delay, deliver_at),
        group,
        priority,
        dedup,
    )


def record_post(
    log: str,
    value: Any,
    *,
    key: bytes | str | None = None,
    headers: HeadersLike | None = None,
) -> InboxPost:
    """Return the post of a record for a log. Raises `InvalidInput`."""
    check_name(log, "log")
    return InboxPost(None, log, *_content(value, key, headers))


def not_adopted(database: str, path: str) -> CannotOpen:
    """Return the error for a database without an inbox."""
    return CannotOpen(
        f"{database} has no table {INBOX}, so it is not a Millstream store yet; `millstream adopt "
        f"{path}` adds Millstream's tables, and leaves its own tables as they are",
        path=path,
    )


def not_sqlite(database: str, kind: str) -> InvalidInput:
    """Return the error for a database that cannot be a store."""
    return InvalidInput(
        f"{database} is a database of {kind}, and the inbox is a table in the SQLite file of a "
        "store; put the message through `millstream.open(...)` there, after the commit"
    )


def _content(
    value: Any, key: bytes | str | None, headers: HeadersLike | None
) -> tuple[str | bytes, str | None, str | bytes | None]:
    """Return value, headers and key as columns: JSON is TEXT, and everything else is a BLOB."""
    if value is None:
        raise InvalidInput("a post has a value: bytes, text or JSON, not None")
    pack_single(value, key=key, headers=headers, timestamp=None, limits=Limits())  # the checks
    data, kind = pack_value(value)
    names = _plain(headers)
    if kind is not None:
        names.setdefault(CONTENT_TYPE, kind)
    text = msgspec.json.encode(names).decode() if names else None
    return data.decode() if kind == JSON else data, text, key


def _plain(headers: HeadersLike | None) -> dict[str, Any]:
    plain = as_plain(headers) if headers else {}
    if not isinstance(plain, dict):
        raise InvalidInput("the headers of a post are an object of JSON: a name must not repeat")
    for name, value in plain.items():
        if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidInput(
                f"the headers of a post are an object of JSON, and {name!r:.100} is {value!r:.100}: "
                "use text, a finite number, a bool or None"
            )
    return dict(plain)


def _wall_ms(delay: Seconds | None, deliver_at: datetime | int | None) -> int | None:
    """Return when a message is due, as the column `deliver_at` takes it; None for now."""
    if delay is not None and deliver_at is not None:
        raise InvalidInput("delay or deliver_at, not both")
    if delay is not None:
        return SystemClock().wall_ms() + check_integer("delay in ms", to_ms(delay, "delay"))
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise InvalidInput("a time needs a time zone: datetime(..., tzinfo=UTC)")
        deliver_at = wall_ms_of(deliver_at)
    return None if deliver_at is None else check_integer("deliver_at", deliver_at)
