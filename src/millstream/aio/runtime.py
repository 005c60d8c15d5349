"""What coroutines do otherwise than threads: the same names as in `millstream.threads.runtime`.

The other files of nouns in this folder hold for both: those of threads are generated from them.
"""

from __future__ import annotations

import asyncio
from asyncio import Event, Future, Lock
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from millstream.clock import Clock
from millstream.command import AsyncSession, Command
from millstream.embedded.loop.loop_turn import LoopTurn as Turn
from millstream.limits import Limits
from millstream.store.commit.writer_turn import not_offered

__all__ = [
    "Entries",
    "Event",
    "Future",
    "Indexed",
    "Lock",
    "Turn",
    "Unbroken",
    "begin_turn",
    "close_at_exit",
    "declaring",
    "opening",
    "yield_turn",
]

T = TypeVar("T")
_P = ParamSpec("_P")


class _Closable(Protocol):
    """A handle that is closed when its block ends."""

    async def close(self) -> None:
        """Let go of it."""


_C = TypeVar("_C", bound=_Closable)


class _Opening(Coroutine[Any, Any, _C], Generic[_C]):
    """A handle that is on its way: awaited, or entered by `async with`, which closes it as well."""

    def __init__(self, opening: Coroutine[Any, Any, _C]) -> None:
        self._opening = opening
        self._opened: _C | None = None

    def __await__(self) -> Generator[Any, Any, _C]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        """As of any coroutine, so that a loop can run it."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """The same."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """The same."""
        self._opening.close()

    async def __aenter__(self) -> _C:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def opening(function: Callable[_P, Coroutine[Any, Any, _C]]) -> Callable[_P, _Opening[_C]]:
    """Let what a function opens be awaited, or be entered at once."""

    @wraps(function)
    def begin(*arguments: _P.args, **named: _P.kwargs) -> _Opening[_C]:
        return _Opening(function(*arguments, **named))

    return begin


def close_at_exit(close: Callable[[], Awaitable[None]]) -> None:
    """Do nothing: no event loop runs when the process ends, so its owner closes the store."""


async def yield_turn() -> None:
    """Let the other coroutines of the event loop run."""
    await asyncio.sleep(0)


async def begin_turn(session: AsyncSession, timeout_s: float) -> Turn:
    """Take the writer's turn of a session, if the session has the store's own file."""
    begin: Callable[[float], Awaitable[Turn]] | None = getattr(session, "begin_turn", None)
    if begin is None:
        raise not_offered()
    return await begin(timeout_s)


def declaring(session: AsyncSession, command: Command[Any]) -> AsyncSession:
    """Return a session that carries out a command before its first other command.

    A noun is made without `await`, so what it declares waits for its first method.
    """
    return _Declaring(session, command)


class _Declaring:
    """A session with a command that is still to be carried out; the command may be repeated."""

    def __init__(self, session: AsyncSession, command: Command[Any]) -> None:
        self._session = session
        self._command: Command[Any] | None = command

    @property
    def limits(self) -> Limits:
        """The limits of the session beneath."""
        return self._session.limits

    @property
    def clock(self) -> Clock:
        """The clock of the session beneath."""
        return self._session.clock

    async def execute(self, command: Command[T]) -> T:
        """Answer a command, after the declaration was stored."""
        if self._command is not None:
            await self._session.execute(self._command)
            self._command = None
        return await self._session.execute(command)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


class Entries:
    """A mapping cannot be awaited: coroutines have the methods alone."""


class Indexed:
    """`log[5]` cannot be awaited as one would read it: coroutines have `await log.at(5)` alone."""


class Unbroken:
    """Runs a command to its end, also if the coroutine that asked for it is cancelled."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._last: Future[Any] | None = None

    async def execute(self, command: Command[T]) -> T:
        """The command's answer."""
        running = asyncio.ensure_future(self._session.execute(command))
        self._last = running
        return await asyncio.shield(running)

    async def ended(self) -> None:
        """Wait until the last command has ended, however it did."""
        if self._last is not None:
            await asyncio.wait([self._last])
