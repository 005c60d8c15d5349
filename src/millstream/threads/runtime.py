"""What threads do otherwise than coroutines: the parts that the generated nouns stand on.

The nouns of threads are generated from those of coroutines (`tools/generate.py`). What cannot be
the same text is here, and under the same names in `millstream.aio.runtime`.
"""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future
from threading import Event, Lock
from typing import Any, TypeVar, overload
from weakref import WeakMethod

from millstream.command import Command, Session
from millstream.embedded.session_turn import SessionTurn as Turn
from millstream.errors import InvalidInput
from millstream.record import Record, Time
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


def opening(function: T) -> T:
    """Coroutines have to wrap what opens a handle; threads enter the handle itself."""
    return function


def close_at_exit(close: Callable[[], None]) -> None:
    """Call a method when the process ends, if its object is still there.

    Threads that a worker has abandoned may run on. A store that is open while Python clears its
    modules could then be used after it was freed.
    """
    method = WeakMethod(close)

    def call() -> None:
        if (live_method := method()) is not None:
            live_method()

    atexit.register(call)


def yield_turn() -> None:
    """Do nothing: the system switches between threads."""


def begin_turn(session: Session, timeout_s: float) -> Turn:
    """Take the writer's turn of a session, if the session has the store's own file."""
    begin: Callable[[float], Turn] | None = getattr(session, "begin_turn", None)
    if begin is None:
        raise not_offered()
    return begin(timeout_s)


def declaring(session: Session, command: Command[Any]) -> Session:
    """Carry out what a noun declares, and return the session."""
    session.execute(command)
    return session


class Entries(MutableMapping[str, Any]):
    """Entries of a log or queue as a mapping; an access executes a command."""

    @abstractmethod
    def all(self) -> dict[str, Any]:
        """Every entry."""

    @abstractmethod
    def set(self, key: str, value: Any) -> None:
        """Set an entry."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an entry; a missing one is a `KeyError`."""

    def __getitem__(self, key: str) -> Any:
        return self.all()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.all()!r})"


class Indexed(ABC):
    """Records by offset: `log[5]`, `log[-1]`, and `log[-10:]` as a list."""

    @abstractmethod
    def at(self, offset: int) -> Record:
        """Return the record at an offset; negative offsets count from the end."""

    @abstractmethod
    def read(
        self, start: int | None = None, stop: int | None = None, *, since: Time | None = None
    ) -> Iterator[Record]:
        """Yield the records in [start, stop)."""

    @overload
    def __getitem__(self, offset: int) -> Record: ...
    @overload
    def __getitem__(self, offset: slice) -> list[Record]: ...
    def __getitem__(self, offset: int | slice) -> Record | list[Record]:
        if not isinstance(offset, slice):
            return self.at(offset)
        if offset.step is not None:
            raise InvalidInput(f"records come in order, one by one: no step {offset.step!r:.100}")
        return list(self.read(offset.start, offset.stop))


class Unbroken:
    """Runs a command to its end, one after the other: a thread is not cancelled in between."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(self, command: Command[T]) -> T:
        """The command's answer."""
        return self._session.execute(command)

    def ended(self) -> None:
        """Wait until the last command has ended: it has."""
