"""The parts of a session that claims of coroutines need, and the return of unreceived messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from millstream.command import Operation
from millstream.queue.commands import ClaimMessages, ReturnClaims, Run
from millstream.queue.model.grants import Grant
from millstream.queue.model.message import Lot
from millstream.queue.runs import lots_claimed

T = TypeVar("T")

Told = Callable[[Any], object]
"""Receives an answer."""

TakesLots = Callable[[list[Lot]], bool]
"""Receives claimed messages; returns False, without any effect, if it does not take them."""


Turn = AbstractAsyncContextManager[None]
"""Waits for the right of a client to run a query, and holds it for the length of the block."""


class ClientTurns(Turn, Protocol):
    """The limit on parallel queries of a client: each look at a queue is a query."""

    @property
    def for_looks(self) -> Turn:
        """A turn for a look, ahead of other queries, because the whole line waits for the look."""


class Loop(Protocol):
    """The methods of a session that claims need; they run on the event loop of the session."""

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
        turns: Turn | None = None,
        unwanted: Told | None = None,
    ) -> T:
        """Run a function in a thread of the pool, in a turn of the client if `turns` is given.

        `unwanted` gets the answer, in the loop, if the caller is cancelled before receiving it.
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""

    def is_here(self) -> bool:
        """Return whether the event loop itself is calling."""


class Returns:
    """Gives back messages claimed for a consumer that left before it received them.

    A cancelled claim may still be made by a commit or a thread that is under way. Its messages are
    given back at once: no consumer has seen them, and none would finish them before their lease ends.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def give_back(self, command: ClaimMessages, lots: Sequence[Lot]) -> None:
        """Make claimed messages available again that never reached their consumer.

        Popped messages are done: a pop delivers at most once.
        """
        self._give_back(command, lots_claimed(lots))

    def give_back_grants(self, command: ClaimMessages, grants: Sequence[Grant]) -> None:
        """Give back claimed messages that were not read."""
        self._give_back(command, [(grant.claim_id, grant.count, grant.attempt) for grant in grants])

    def _give_back(self, command: ClaimMessages, runs: list[Run]) -> None:
        if runs and not command.pop:
            self._loop.commit_soon(ReturnClaims(command.queue, runs), _ignore)


def _ignore(answer: object) -> None:
    """Ignore the answer: messages that could not be given back return when their lease ends."""
