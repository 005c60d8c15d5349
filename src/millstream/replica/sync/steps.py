"""Steps of a sync: what it asks of the two stores, one round at a time, without I/O.

A sync is written once, as a generator that yields rounds of questions and is sent their answers.
`drive` asks them (`aio/sync.py`, and `syncing.py` for threads). The questions of one round go to
different stores and do not depend on each other, so that one store can read while the other one
writes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, TypeVar

from msgspec import Struct

from millstream.command import Command

T = TypeVar("T")

Side = Literal["own", "peer"]


class Ask(Struct, frozen=True):
    """One question to one of the stores."""

    side: Side
    command: Command[Any]


Steps = Generator[list[Ask], list[Any], T]
"""Yields rounds, is sent their answers, and gives a `T` in the end. If a question is answered by an
error, that is thrown in, the first question's first."""


def ask(side: Side, command: Command[T]) -> Steps[T]:
    """A round of one question."""
    (answer,) = yield [Ask(side, command)]
    found: T = answer
    return found
