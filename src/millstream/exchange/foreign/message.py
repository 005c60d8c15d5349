"""A message of another system, and the protocol of its queue."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct, field

from millstream.errors import InvalidInput
from millstream.header import HeaderValue

PICKLE = "application/x-python-pickle"
"""The content type of a value that only Python code of the user may load."""


class ForeignMessage(Struct, frozen=True):
    """A waiting message of another system."""

    id: str
    """The identity by which a repeat is recognised; the same if the message is read again."""
    value: bytes
    headers: dict[str, HeaderValue] = field(default_factory=dict)
    priority: int | None = None
    """From 0 to 9; 9 goes first."""
    due_ms: int | None = None
    """When the message may be claimed, in milliseconds since the epoch; None: now."""
    receipt: Any = None
    """The handle by which the source removes the message."""


class ForeignQueue(Protocol):
    """The queue of another system. One process at a time may move its messages."""

    def take(self, count: int) -> Sequence[ForeignMessage]:
        """Return waiting messages, which stay in the source; an empty list ends the move.

        Messages of an earlier `take` that were not removed are returned again, at once or later.
        """

    def remove(self, messages: Sequence[ForeignMessage]) -> None:
        """Remove messages for good, once they are stored elsewhere."""

    def close(self) -> None:
        """Release connections and files."""


def needed(package: str, kind: str) -> Any:
    """Import the package of a source; raise `InvalidInput` with the package to install."""
    try:
        return import_module(package)
    except ImportError:
        raise InvalidInput(
            f"--from {kind} needs the package {package}, which is not installed: pip install {package}"
        ) from None
