"""Selection: which jobs a filter names, by the headers of their messages."""

from __future__ import annotations

from typing import Any, Protocol

from millstream.queue.model.message import Message


class Matcher(Protocol):
    """A parsed filter."""

    def matches(
        self, headers: Any, key: bytes | None, timestamp: int, log: str, *, has_value: bool
    ) -> bool:
        """Return whether a record matches."""


def matches(condition: Matcher, message: Message) -> bool:
    """Return whether a job matches; a job with unreadable headers matches no filter."""
    return message.damage != "record" and condition.matches(
        message.headers,
        message.key,
        message.timestamp,
        message.log,
        has_value=message.value is not None,
    )
