"""The handle that `millstream.open` gives: the nouns of one store, over whatever session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from millstream.command import Fold, Session, Stats, Transact
from millstream.errors import InvalidInput
from millstream.log import commands as c
from millstream.log.log import Log
from millstream.queue.commands import ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.spec import spec_of
from millstream.queue.queue import Queue
from millstream.record import LogInfo
from millstream.replica.commands import GetStoreId
from millstream.replica.sync.following import follow
from millstream.replica.sync.outcome import Direction, OnFork, Options, Outcome, Tell
from millstream.replica.sync.sync import synced
from millstream.steps import Later, Steps
from millstream.store.place import check_peer

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

    def queue(self, name: str, **settings: Any) -> Queue:
        """The queue of that name, which need not exist; with settings, what `create_queue` gives."""
        return self.create_queue(name, **settings) if settings else Queue(self._session, name)

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Make a queue, or make it what the settings say (`spec_of` lists them).

        What is not named has its default, also if the queue was altered since. So it can be said at
        every start, by any number of processes at once. A setting that differs and cannot be altered
        now raises `Conflict`, and nothing changes.
        """
        queue = Queue(self._session, name)
        queue.specify(spec_of(**settings))
        return queue

    def queues(self) -> Iterator[QueueInfo]:
        """How every queue stands, in the order of their names."""
        after = ""
        while page := self._session.execute(ListQueues(after, LOGS_PER_PAGE)):
            yield from page
            after = page[-1].name

    def transaction(self) -> Transaction:
        """Several operations in one commit: they are gathered, and happen when the block ends."""
        return Transaction(self._session)

    def sync(
        self,
        peer: Millstream | str | os.PathLike[str],
        *,
        direction: Direction = "both",
        logs: str = "*",
        on_fork: OnFork = "refuse",
        compress: bool = False,
        truncate: bool = True,
        progress: Tell | None = None,
        token: str | None = None,
        create: bool = False,
    ) -> Outcome:
        """Exchange with another store what one has and the other lacks; docs/REPLICAS.md says how.

        `peer` is an open store, a file, or the address of a server, which is shown `token`. A file
        that is not there is made if `create` says so. A log that cannot be brought together raises
        its error once all the others are done.
        """
        options = Options(
            direction=direction, logs=logs, on_fork=on_fork, compress=compress, truncate=truncate
        )
        options.check()
        with _session_of(peer, token, create=create) as session:
            return synced(self._session, session, options, progress)

    def follow(
        self,
        peer: Millstream | str | os.PathLike[str],
        *,
        direction: Direction = "both",
        logs: str = "*",
        on_fork: OnFork = "refuse",
        compress: bool = False,
        truncate: bool = True,
        progress: Tell | None = None,
        token: str | None = None,
        create: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[Outcome]:
        """Sync now and after every change, until `stop` is set; gives each outcome with news."""
        options = Options(
            direction=direction, logs=logs, on_fork=on_fork, compress=compress, truncate=truncate
        )
        options.check()
        with _session_of(peer, token, create=create) as session:
            yield from follow(self._session, session, options, tell=progress, stop=stop)

    def store_id(self) -> str:
        """The name of this store among its peers: what a log is handed over to."""
        return self._session.execute(GetStoreId())

    def stats(self) -> dict[str, Any]:
        """Facts and counters: durability, sizes, what is unfolded."""
        return self._session.execute(Stats())

    def fold(self) -> int:
        """Move every commit into its records now rather than in the background."""
        return self._session.execute(Fold())

    def close(self) -> None:
        """Let go of the store; a second call does nothing."""
        self._session.close()


peers_opened_by: list[Callable[..., Millstream]] = []
"""`millstream.open`, which knows every kind of store; it says so when the package is imported."""


@contextmanager
def _session_of(
    peer: Millstream | str | os.PathLike[str], token: str | None, *, create: bool
) -> Iterator[Session]:
    """The session of a peer; one that is opened here is closed here."""
    if isinstance(peer, Millstream):
        yield peer._session
        return
    if not isinstance(peer, str | os.PathLike):
        raise InvalidInput(
            f"a peer is an open store, a path or an address, not {type(peer).__name__}"
        )
    if not create:
        check_peer(peer)
    with peers_opened_by[-1](peer, token=token) as opened:
        yield opened._session


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
