"""Steps of a sync: the questions to the two stores, one round at a time, without I/O.

A sync is written once, as a generator that yields rounds of questions and is sent their answers.
`drive` asks them (`aio/sync.py`, `threads/sync.py`). The questions of a round go to different
stores and are independent, so that a store can read while its peer writes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from millstream.command import Command
from millstream.replica.commands import AdoptParcel, Parcel

T = TypeVar("T")

Party = Literal["local", "peer"]
OPPOSITE: dict[Party, Party] = {"local": "peer", "peer": "local"}

BLOCK_BYTES = 24
"""About how many bytes a block takes on the wire beside its contents."""


class Question(Struct, frozen=True):
    """A question to one of the stores."""

    party: Party
    command: Command[Any]


Steps = Generator[list[Question], list[Any], T]
"""Yields rounds, is sent their answers, and returns a `T`. If a question fails, its error is thrown
in; if several fail, the error of the first question."""


def ask(party: Party, command: Command[T]) -> Steps[T]:
    """Ask a single question, and return its answer."""
    (answer,) = yield [Question(party, command)]
    result: T = answer
    return result


class TrafficMeter:
    """Bytes that went to a peer and came from it. Questions to the peer never overlap.

    The meter counts the bytes that a wire would carry, so that a sync between two files tells the
    traffic of a sync between two machines.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def note(self, command: Command[Any], answer: Any) -> None:
        """Count a question and its answer."""
        self.bytes += weight(command) + weight(answer)


def weight(value: Any) -> int:
    """Return how many bytes a value takes on a wire. Blocks are not encoded only to be counted."""
    if isinstance(value, AdoptParcel):
        return weight(value.parcel) + len(value.log) + 64
    if isinstance(value, Parcel):
        return value.weight() + BLOCK_BYTES * len(value.blocks) + 64
    return len(msgspec.msgpack.encode(value))
