"""What claims of coroutines need of the session whose event loop they run in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from millstream.command import Operation
from millstream.queue.model.message import Lot

T = TypeVar("T")

Told = Callable[[Any], object]
"""Is told an answer."""

TakesLots = Callable[[list[Lot]], bool]
"""Is offered messages that a claim has got; False, and nothing done, if it does not take them."""


class ClientTurns(Protocol):
    """How many queries of one client may run at once: each look at a queue is one of them."""

    def begin(self, start: Callable[[], None]) -> None:
        """Call `start` once there is a turn, perhaps on another thread; before who waits longer."""

    def end(self) -> None:
        """Give a turn back; from any thread."""

    async def __aenter__(self) -> None:
        """Wait for a turn."""

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""


class Loop(Protocol):
    """What claims need of the session whose event loop they run in."""

    async def commit(self, command: Operation[T], unwanted: Told | None = None) -> T:
        """Carry out an operation together with all others of this turn of the loop.

        `unwanted` is told the answer if the caller is cancelled before it has it.
        """

    def commit_soon(self, command: Operation[Any], done: Callable[[Any], object]) -> None:
        """The same, without a coroutine: `done` is told the answer, or an exception."""

    async def ask(
        self,
        question: Callable[..., T],
        *arguments: Any,
        turns: ClientTurns | None = None,
        unwanted: Told | None = None,
    ) -> T:
        """Have a thread of the pool answer, in one of the client's turns if it has such.

        `unwanted` is told the answer, in the loop, if the caller is cancelled before it has it.
        """

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread of the pool work; from any thread. RuntimeError if it was shut down."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""

    def is_here(self) -> bool:
        """Whether the event loop itself is calling."""
