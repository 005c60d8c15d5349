"""Steps of a sync: what it asks of the two stores, one round at a time, without I/O.

A sync is written once, as a generator that yields rounds of questions and is sent their answers.
`drive` asks them (`aio/sync.py`, `threads/sync.py`). The questions of one round go to
different stores and do not depend on each other, so that one store can read while the other one
writes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from millstream.command import Command
from millstream.replica.commands import AdoptParcel, Parcel

T = TypeVar("T")

Side = Literal["own", "peer"]
OTHER: dict[Side, Side] = {"own": "peer", "peer": "own"}

BLOCK_BYTES = 24
"""About what a block takes beside its bytes."""


class Question(Struct, frozen=True):
    """One question to one of the stores."""

    side: Side
    command: Command[Any]


Steps = Generator[list[Question], list[Any], T]
"""Yields rounds, is sent their answers, and gives a `T` in the end. If a question is answered by an
error, that is thrown in, the first question's first."""


def ask(side: Side, command: Command[T]) -> Steps[T]:
    """A round of one question."""
    (answer,) = yield [Question(side, command)]
    found: T = answer
    return found


class TrafficMeter:
    """Bytes that went to a peer, and that came from it: no two questions go there at once.

    It counts what a wire would carry, so that a sync between two files says what it would cost
    between two machines.
    """

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
