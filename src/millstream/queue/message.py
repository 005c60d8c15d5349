"""The values that consumers hold: a claimed message, how its attempts went, how a queue stands.

And the two exceptions by which a handler says what is to become of a message.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct

from millstream.queue.spec import QueueSpec
from millstream.record import Headers

T = TypeVar("T")


class Message(Struct, frozen=True, array_like=True, gc=False):
    """A record of a log as one queue sees it; claimed, unless it was only peeked at."""

    queue: str
    claim_id: int
    attempt: int
    value: bytes
    key: bytes | None
    headers: Headers
    timestamp: int
    log: str
    offset: int
    until_ms: int = 0
    """When the lease ends, in store time; in a peek, when the message is due, or ended."""
    reason: str = ""
    """Of a failed message: why."""

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:
        """The value decoded from JSON, checked against a type if one is given."""
        return msgspec.json.decode(self.value, type=type)


class Try(Struct, frozen=True, gc=False):
    """One attempt at a message."""

    claimed_ms: int
    consumer: str
    ended_ms: int | None = None
    outcome: str = "in flight"
    reason: str = ""


class QueueInfo(Struct, frozen=True, kw_only=True):
    """How a queue stands."""

    name: str
    spec: QueueSpec
    available: int
    """Routed and claimable now."""
    unrouted: int
    """In the logs, beyond where routing has come; some may not match the filter."""
    delayed: int
    in_flight: int
    done: int
    failed: int
    duplicates: int
    """Repeats that were dropped."""
    lost: int
    """Records that a log forgot before this queue, a lossy one, had looked at them."""
    paused: bool
    created: int
    oldest_s: float | None
    """How long ago the oldest message that waits was appended."""
    in_per_second: float
    """Messages routed to it, and done, lately: over about a minute."""
    done_per_second: float


class Reject(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler: the message can never be worked on, so it fails at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler: try the message again later. Any other error has the same effect."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
