"""Stores of a test, what can be seen of them, and sessions between them that a test can break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from millstream import Millstream
from millstream.command import Command, Session
from millstream.log.commands import GetOwner
from millstream.replica.commands import GetStampedMetadata, SummarizeLogs, Summary

T = TypeVar("T")


def records(ms: Millstream, log: str) -> list[tuple[Any, ...]]:
    """Everything of a log that travels."""
    return [
        (r.offset, r.value, r.key, dict(r.headers), r.timestamp, r.appended)
        for r in ms.log(log).read()
    ]


def values(ms: Millstream, log: str) -> list[bytes]:
    return [record.value for record in ms.log(log).read()]


def store_id(ms: Millstream) -> str:
    return ms.store_id()


def summaries(ms: Millstream, pattern: str = "*") -> list[Summary]:
    return ms.session.execute(SummarizeLogs("", 1_000, pattern))


def seen(ms: Millstream) -> dict[str, Any]:
    """Everything that can be seen of a store's logs, forks included."""
    return {
        info.name: (
            info.start_offset,
            info.end_offset,
            records(ms, info.name),
            ms.session.execute(GetStampedMetadata(info.name)),
            ms.session.execute(GetOwner(info.name)).store,
            ms.session.execute(GetOwner(info.name)).epoch,
        )
        for info in ms.logs()
    }


class Cut(Exception):
    """The line went dead."""


class Line:
    """A session in the middle of which something can go wrong."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.limits, self.clock = session.limits, session.clock
        self.asked: list[Command[Any]] = []
        self.cut_at: int | None = None
        self.cut_after = False
        """Whether the question that is cut off was carried out, and only its answer lost."""
        self.tampers: Callable[[Command[Any], Any], Any] = lambda command, answer: answer

    def execute(self, command: Command[T]) -> T:
        number = len(self.asked)
        self.asked.append(command)
        if number == self.cut_at and not self.cut_after:
            raise Cut
        answer = self.session.execute(command)
        if number == self.cut_at:
            raise Cut
        found: T = self.tampers(command, answer)
        return found

    def close(self) -> None:
        pass


def through(ms: Millstream) -> tuple[Millstream, Line]:
    """A store, behind a line."""
    line = Line(ms.session)
    return Millstream(line), line
