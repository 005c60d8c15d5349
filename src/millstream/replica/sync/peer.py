"""How many bytes were exchanged with a peer, the other side of a sync.

What is counted is what a wire would carry, commands and answers, so that a sync between two files
says what it would cost between two machines.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.command import Command
from millstream.replica.commands import AdoptParcel, Parcel

BLOCK_BYTES = 24
"""About what a block takes beside its bytes."""


class Meter:
    """Bytes that went to a peer, and that came from it: no two questions go there at once."""

    def __init__(self) -> None:
        self.bytes = 0

    def note(self, command: Command[Any], answer: Any) -> None:
        """Count one question and its answer."""
        self.bytes += weight(command) + weight(answer)


def weight(value: Any) -> int:
    """Bytes that a value takes on a wire; blocks are not encoded only to be counted."""
    if isinstance(value, AdoptParcel):
        return weight(value.parcel) + len(value.log) + 64
    if isinstance(value, Parcel):
        return value.weight() + BLOCK_BYTES * len(value.blocks) + 64
    return len(msgspec.msgpack.encode(value))
