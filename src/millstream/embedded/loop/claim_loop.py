"""The parts of a session that claims of coroutines need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from millstream.command import Operation
from millstream.queue.model.message import Lot

T = TypeVar("T")

Told = Callable[[Any], object]
"""Receives an answer."""

TakesLots = Callable[[list[Lot]], bool]
"""Receives claimed messages; returns False, without any effect, if it does not take them."""


class ClientTurns(Protocol):
    """The limit on parallel queries of a client: each look at a queue is a query."""

    def begin(self, start: Callable[[], None]) -> None:
        """Call `start` when a turn is free, perhaps on another thread; ahead of longer waits."""

    def end(self) -> None:
        """Release a turn; from any thread."""

    async def __aenter__(self) -> None:
        """Wait for a turn."""

    async def __aexit__(self, *error: object) -> None:
        """Release the turn."""


class Loop(Protocol):
    """The parts of a session that claims need; all of them belong to its event loop."""

    async def commit(self, command: Operation[T], unwanted: Told | None = None) -> T:
        """Commit an operation together with all others of this turn of the loop.

        `unwanted` gets the answer if the caller is cancelled before receiving it.
        """

    def commit_soon(self, command: Operation[Any], done: Callable[[Any], object]) -> None:
        """Commit an operation without a coroutine: `done` gets the answer, or an exception."""

    async def ask(
        self,
        question: Callable[..., T],
        *arguments: Any,
        turns: ClientTurns | None = None,
        unwanted: Told | None = None,
    ) -> T:
        """Run a function in a thread of the pool, in a turn of the client if `turns` is given.

        `unwanted` gets the answer, in the loop, if the caller is cancelled before receiving it.
        """

    def submit(self, work: Callable[[], None]) -> None:
        """Run work in a thread of the pool; from any thread. RuntimeError after the shutdown."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""

    def is_here(self) -> bool:
        """Return whether the event loop itself is calling."""
