"""How many bytes were exchanged with a peer, the other side of a sync.

What is counted is what a wire would carry, commands and answers, so that a sync between two files
says what it would cost between two machines.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from millstream.command import Command
from millstream.replica.commands import AdoptParcel, Parcel

BLOCK_BYTES = 24
"""About what a block takes beside its bytes."""


class Meter:
    """Bytes that went to a peer, and that came from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0
        self.asked = 0

    def note(self, command: Command[Any], answer: Any) -> None:
        """Count one question and its answer."""
        sent, received = weight(command), weight(answer)
        with self._lock:
            self.asked += 1
            self.sent += sent
            self.received += received

    @property
    def total(self) -> int:
        """Both ways."""
        return self.sent + self.received


def weight(value: Any) -> int:
    """Bytes that a value takes on a wire; blocks are not encoded only to be counted."""
    if isinstance(value, AdoptParcel):
        return weight(value.parcel) + len(value.log) + 64
    if isinstance(value, Parcel):
        return value.weight() + BLOCK_BYTES * len(value.blocks) + 64
    return len(msgspec.msgpack.encode(value))
