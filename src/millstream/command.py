"""Commands: what can be asked of a store, as values.

The nouns that users hold (`Log`, `Cursor`, …) only build commands and hand them to a session. So
an embedded store, a server across the wire, and a coroutine's view of either share their nouns:
they differ in the session alone. A mutation runs inside the transactor and is durable when it
returns; a query reads.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from millstream.clock import Clock
from millstream.limits import Limits

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Command(Struct, Generic[T], frozen=True, tag=True):
    """Something to ask; `T` is the type of its answer."""


class Mutation(Command[T], Generic[T], frozen=True):
    """A command that changes the store, as part of one commit."""


class Query(Command[T], Generic[T], frozen=True):
    """A command that only reads."""


class Transact(Mutation[list[Any]], frozen=True):
    """Several mutations in one commit: all of them, or none."""

    steps: list[Any]


class Sql(Mutation[None], frozen=True):
    """A statement on the application's own tables, in the same commit as what else is asked."""

    statement: str
    parameters: list[Any]


class Stats(Query[dict[str, Any]], frozen=True):
    """Facts and counters of the store."""


class Fold(Query[int], frozen=True):
    """Fold everything that is unfolded now; how many commits were folded."""


class Session(Protocol):
    """Whoever answers commands, on the caller's thread."""

    limits: Limits
    clock: Clock

    def execute(self, command: Command[T]) -> T:
        """Answer a command; a mutation is durable on return. Raises a `MillstreamError`."""

    def close(self) -> None:
        """End the session."""


class AsyncSession(Protocol):
    """Whoever answers commands, to coroutines."""

    limits: Limits
    clock: Clock

    async def execute(self, command: Command[T]) -> T:
        """Answer a command, as `Session.execute`; other coroutines run meanwhile."""

    async def close(self) -> None:
        """End the session."""
