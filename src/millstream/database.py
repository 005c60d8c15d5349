"""The handle that `millstream.open` gives: the nouns of one store, over whatever session."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from millstream.command import Fold, Session, Stats, Transact
from millstream.log import commands as c
from millstream.log.log import Log
from millstream.queue.commands import ListQueues
from millstream.queue.message import QueueInfo
from millstream.queue.queue import Queue, spec_of
from millstream.record import LogInfo
from millstream.steps import Later, Steps

__all__ = ["Later", "Millstream", "Transaction"]

LOGS_PER_PAGE = 1_000


class Millstream:
    """One open store. Any thread may use it; close it when done, or use it in a `with`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def log(self, name: str) -> Log:
        """The log of that name; it comes to exist with its first append."""
        return Log(self._session, name)

    def logs(self) -> Iterator[LogInfo]:
        """Every log, in the order of their names."""
        after = ""
        while page := self._session.execute(c.ListLogs(after, LOGS_PER_PAGE)):
            yield from page
            after = page[-1].name

    def queue(self, name: str, **spec: Any) -> Queue:
        """The queue of that name; made, if a spec is given and there is none (see `spec_of`)."""
        queue = Queue(self._session, name)
        if spec:
            queue.specify(spec_of(**spec))
        return queue

    def queues(self) -> Iterator[QueueInfo]:
        """How every queue stands, in the order of their names."""
        after = ""
        while page := self._session.execute(ListQueues(after, LOGS_PER_PAGE)):
            yield from page
            after = page[-1].name

    def transaction(self) -> Transaction:
        """Several mutations in one commit: they are gathered, and happen when the block ends."""
        return Transaction(self._session)

    def stats(self) -> dict[str, Any]:
        """Facts and counters: durability, sizes, what is unfolded."""
        return self._session.execute(Stats())

    def fold(self) -> int:
        """Move every commit into its records now rather than in the background."""
        return self._session.execute(Fold())

    def close(self) -> None:
        """Let go of the store; a second call does nothing."""
        self._session.close()


class Transaction(Steps):
    """Gathers steps; leaving the block commits all of them, an exception none."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.limits)
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._steps:
            self._settle(self._session.execute(Transact(self._steps)))
