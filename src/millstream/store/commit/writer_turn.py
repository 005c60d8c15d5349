"""The writer's turn of an interactive transaction (`ms.begin()`).

The caller takes the turn of the transactor and SQLite's write lock, runs statements on its own thread,
sees their results at once, and ends with one commit: the statements, and an operation on logs and queues.
The state of the store is not touched before the end. So readers go on, and an error, a lost caller or a
killed process leaves nothing behind.

All other writers wait meanwhile. `TimeLimit` ends a transaction that lasts too long, on its own thread:

    a statement is running      the statement is interrupted, and its thread rolls back
    no statement is running     the thread of the limit rolls back

The caller then gets `TransactionExpired` from its next call. Once the commit has begun, it has no limit.

A handover of each statement to a committing thread would cost about 30 µs per statement.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.engine.protocol import Engine, WouldWait, no_tables
from millstream.errors import (
    CannotOpen,
    DiskFull,
    InvalidInput,
    MillstreamError,
    TransactionExpired,
    WriteFailed,
)
from millstream.interrupts import deferred
from millstream.record import SqlResult
from millstream.store.commit.committer import HeldWriter, StoreCommitter
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.time_limit import TimeLimit
from millstream.store.commit.transaction import Operation
from millstream.store.commit.transactor import Transactor, fresh

T = TypeVar("T")


class WriterTurn:
    """The turn of one caller, from `begin` until `commit`, `roll_back` or the end of its time."""

    __slots__ = (
        "_clock",
        "_committer",
        "_engine",
        "_expiry",
        "_guard",
        "_has_failed",
        "_held",
        "_is_cancelled",
        "_is_running",
        "_on_end",
        "_refusal",
        "_timeout_s",
        "_transactor",
        "ends_s",
        "is_over",
        "thread_id",
    )

    def __init__(
        self,
        engine: Engine,
        transactor: Transactor,
        committer: StoreCommitter,
        clock: Clock,
        *,
        timeout_s: float,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """`on_end` is called once, on any thread, when other writers go on."""
        self._engine, self._transactor, self._committer = engine, transactor, committer
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._held: HeldWriter | None = None
        self._refusal: DiskFull | None = None
        """The error for statements while the disk is full."""
        self._guard = allocate_lock()
        """Guards the flags below, for a few instructions and the rollback of the limit's thread."""
        self._is_running = False
        """Whether a statement is running."""
        self.is_over = False
        """Whether the transaction has ended, or its commit has begun."""
        self._has_failed = False
        """Whether a statement has failed, which may have ended the transaction."""
        self._is_cancelled = False
        """Whether the caller has left, and only waits for the rollback."""
        self._expiry: TransactionExpired | None = None
        self.ends_s = 0.0
        """The end of the time limit."""
        self.thread_id = get_ident()

    def begin(self, limit: TimeLimit) -> None:
        """Wait for the turn and take it. A signal's handler runs during the wait, and may raise."""
        try:
            while self._held is None:
                with deferred:
                    if self._transactor.take_turn():
                        self._enter()
                        if self._held is not None:
                            limit.watch(self)
        except BaseException:
            self.roll_back()
            raise

    def _enter(self) -> None:
        """Take the write lock of the file; return the turn if that fails."""
        try:
            shortage = self._engine.shortage()
            if shortage is not None:
                self._refusal = shortage.error()
                if shortage.is_severe:
                    raise fresh(self._refusal)
            held = HeldWriter(self._engine.write())
        except WouldWait:  # a signal has come
            self._transactor.return_turn()
            return
        except BaseException:
            self._transactor.return_turn()
            raise
        self._held = held
        self.ends_s = self._clock.seconds() + self._timeout_s
        held.writer.begin_statements()

    def check(self) -> None:
        """Raise if the transaction cannot go on."""
        if self._expiry is not None:
            raise fresh(self._expiry)
        if self.is_over or self._is_cancelled or self._held is None:
            raise RuntimeError("the transaction has ended: its calls belong inside the block")
        if self._has_failed and not self._is_running and not self._held.writer.is_open:
            raise WriteFailed(
                "an earlier statement has ended the transaction, and nothing of it is stored: leave "
                "the block, and begin again"
            )

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement on the application's tables, and return its result.

        A statement that fails undoes itself, and the transaction goes on.
        """
        is_mine, result = False, None
        try:
            with self._guard:
                self.check()
                if self._is_running:
                    raise RuntimeError("another thread is running a statement of this transaction")
                self._is_running = is_mine = True
            held = self._held
            assert held is not None
            if self._refusal is not None:
                raise fresh(self._refusal)
            result = held.writer.sql(statement, parameters)
            if result.rowcount >= 0:
                held.has_written = True
            return result
        except MillstreamError as error:
            if self._held is not None:  # `INSERT OR FAIL` keeps the rows before the one that failed
                self._held.has_written = True
            if isinstance(error, WriteFailed) and self._expiry is not None:
                raise fresh(self._expiry) from error
            raise
        finally:
            if is_mine:
                with self._guard:
                    self._is_running = False
                    if result is None:
                        self._has_failed = True
                    ends = self._expiry is not None and not self.is_over
                    if ends:
                        self.is_over = True
                if ends:
                    self._release()

    def cancel(self) -> None:
        """End the running statement with an error, and refuse more statements; for any thread."""
        with self._guard:
            self._is_cancelled = True
            if self._is_running and self._held is not None:
                self._held.writer.interrupt()

    def commit(self, operation: Operation[T]) -> T:
        """Run the last operation, and commit it with all statements; return its result.

        Nothing is committed if this raises, except for `OutcomeUnknown`.
        """
        ticket = Ticket(operation)
        with deferred:
            with self._guard:
                self.check()
                self.is_over = True
            assert self._held is not None
            try:
                if self._held.has_written:
                    self._held.writer.check_constraints()
                self._committer.commit_held(ticket, self._held)
            finally:
                self._release()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def roll_back(self) -> None:
        """Undo everything, and let other writers go on; a second call does nothing."""
        if not self.is_over and self._held is not None:
            with deferred:
                with self._guard:
                    was_over, self.is_over = self.is_over, True
                if not was_over:
                    self._release()

    def expire(self, reason: str = "") -> None:
        """Undo everything, because the time is up; the caller gets `TransactionExpired`."""
        with self._guard:
            if self.is_over or self._held is None:
                return
            reason = reason or (
                f"the transaction lasted longer than {self._timeout_s:g} s: do slow work before "
                "`ms.begin()`, or give it a longer timeout"
            )
            self._expiry = TransactionExpired(
                f"the transaction was rolled back, and nothing was stored; {reason}",
                timeout=self._timeout_s,
            )
            if self._is_running:
                self._held.writer.interrupt()
                return  # the thread of the statement rolls back
            self.is_over = True
        self._release()

    def _release(self) -> None:
        """End the transaction of the file, and return the turn."""
        assert self._held is not None
        with deferred:
            try:
                self._held.__exit__(None, None, None)
            finally:
                self._transactor.return_turn()
                if self._on_end is not None:
                    self._on_end()


def check_interactive(engine: Engine) -> None:
    """Raise unless an engine can run statements before the caller has decided on the commit."""
    if engine.read_only:
        raise CannotOpen(f"{engine.place} was opened to be read only", path=engine.place)
    if "sql" not in engine.abilities:
        raise no_tables("ms.begin")
    if "replicated" in engine.abilities:
        raise not_offered()


def not_offered() -> InvalidInput:
    """Return the error for a store whose file the caller does not write itself."""
    return InvalidInput(
        "ms.begin needs the store's own file; a server or a cluster does not offer it: use "
        "ms.transaction(), and keep the application's tables in a database of its own"
    )
