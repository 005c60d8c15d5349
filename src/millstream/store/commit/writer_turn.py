"""The writer's turn of an interactive transaction (`ms.begin()`).

The caller takes the turn of the transactor and SQLite's write lock, runs statements on its own thread,
sees their results at once, and ends with one commit: the statements, and an operation on logs and
queues. The state of the store is not touched before the end. So readers go on, and an error, a lost
caller or a killed process leaves nothing behind.

Meanwhile writers wait. `TimeLimit` ends a transaction that lasts too long, on its own thread:

    a statement is running      the statement is interrupted, and its thread rolls back
    no statement is running     the thread of the limit rolls back

The caller then gets `TransactionExpired` from its next call. Once the commit has begun, it has no
limit.

A handover of each statement to a committing thread would cost about 30 µs per statement.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from millstream.clock import Clock
from millstream.engine.protocol import Engine, InteractiveWriter, WouldWait, no_tables
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
from millstream.store.commit.committer import StoreCommitter
from millstream.store.commit.recovery import Recovery
from millstream.store.commit.time_limit import TimeLimit
from millstream.store.commit.transaction import Operation
from millstream.store.commit.transactor import Transactor, fresh

T = TypeVar("T")


class WriterTurn:
    """The turn of one caller, from `begin` until `commit`, `roll_back` or the end of its time."""

    # Class attributes stand in for the values of a turn that nothing has happened to.
    _writer: InteractiveWriter | None = None
    """The writer, whose transaction was begun."""
    _refusal: DiskFull | None = None
    """The error for statements while the disk is full."""
    _is_running = False
    """Whether a statement is running."""
    is_over = False
    """Whether the transaction has ended, or its commit has begun."""
    _has_failed = False
    """Whether a statement has failed, which may have ended the transaction."""
    _has_written = False
    """Whether statements of the application may have changed its tables."""
    _is_cancelled = False
    """Whether the caller has left, and only waits for the rollback."""
    _expiry: TransactionExpired | None = None
    ends_s = 0.0
    """The end of the time limit."""

    def __init__(
        self,
        engine: Engine,
        transactor: Transactor,
        committer: StoreCommitter,
        *,
        timeout_s: float,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """`on_end` is called once, on any thread, when other writers go on."""
        self._engine, self._transactor, self._committer = engine, transactor, committer
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._guard = allocate_lock()
        """Guards the flags, for a few instructions and the rollback of the limit's thread."""
        self.thread_id = get_ident()

    def begin(self, limit: TimeLimit) -> None:
        """Wait for the turn and take it. A signal's handler runs during the wait, and may raise."""
        try:
            while self._writer is None:
                with deferred:
                    if self._transactor.take_turn() and self._enter():
                        self.ends_s = limit.seconds() + self._timeout_s
                        limit.watch(self)
        except BaseException:
            self.roll_back()
            raise

    def _enter(self) -> bool:
        """Take the write lock of the file; return the turn if that fails."""
        try:
            shortage = self._engine.shortage()
            if shortage is not None:
                self._refusal = shortage.error()
                if shortage.is_severe:
                    raise fresh(self._refusal)
            self._transaction = self._engine.write()
            writer = cast(InteractiveWriter, self._transaction.__enter__())
        except WouldWait:  # a signal has come
            self._transactor.return_turn()
            return False
        except BaseException:
            self._transactor.return_turn()
            raise
        self._writer = writer
        writer.begin_statements()
        return True

    def check(self) -> None:
        """Raise if the transaction cannot go on."""
        if self._expiry is not None:
            raise fresh(self._expiry)
        if self.is_over or self._is_cancelled or self._writer is None:
            raise RuntimeError("the transaction has ended: its calls belong inside the block")
        if self._has_failed and not self._is_running and not self._writer.is_open:
            raise WriteFailed(
                "an earlier statement has ended the transaction, and nothing of it is stored: leave "
                "the block, and begin again"
            )

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any],
        *,
        is_part: bool = False,
    ) -> SqlResult:
        """Run a statement on the application's tables, and return its result.

        A statement that fails undoes itself, and the transaction goes on. With `is_part` the text is
        an action on a savepoint, of `InteractiveWriter.part`.
        """
        is_mine, result = False, None
        try:
            with self._guard:
                self.check()
                if self._is_running:
                    raise RuntimeError("another thread is running a statement of this transaction")
                self._is_running = is_mine = True
            if self._refusal is not None:
                raise fresh(self._refusal)
            writer = cast(InteractiveWriter, self._writer)
            result = writer.part(statement) if is_part else writer.sql(statement, parameters)
            if result.rowcount >= 0:
                self._has_written = True
            return result
        except MillstreamError as error:
            self._has_written = True  # `INSERT OR FAIL` keeps the rows before the one that failed
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

    def begin_part(self) -> None:
        """Begin a part of the transaction that can be undone alone; parts may be nested."""
        self.sql("SAVEPOINT", (), is_part=True)

    def keep_part(self) -> None:
        """Join the innermost part to what is around it."""
        self.sql("RELEASE", (), is_part=True)

    def undo_part(self) -> None:
        """Undo the statements of the innermost part, unless the whole transaction has ended.

        If that fails, the whole transaction is undone: its caller must not commit the part.
        """
        writer = cast(InteractiveWriter, self._writer)
        if self.is_over or not writer.is_open:
            return  # later calls are refused
        try:
            self.sql("ROLLBACK TO", (), is_part=True)
            self.keep_part()
        except BaseException:
            self.roll_back()
            raise

    def cancel(self) -> None:
        """End the running statement with an error, and refuse more statements; for any thread."""
        with self._guard:
            self._is_cancelled = True
            if self._is_running and self._writer is not None:
                self._writer.interrupt()

    def commit(self, operation: Operation[T]) -> T:
        """Run the last operation, and commit it with all statements; return its result.

        Nothing is committed if this raises, except for `OutcomeUnknown`.
        """
        with deferred:
            with self._guard:
                self.check()
                self.is_over = True
            assert self._writer is not None
            try:
                if self._has_written:
                    self._writer.check_constraints()
                return self._committer.commit_held(
                    operation, self._writer, has_written=self._has_written, refusal=self._refusal
                )
            finally:
                self._end()

    def roll_back(self) -> None:
        """Undo everything, and let other writers go on; a second call does nothing."""
        if not self.is_over and self._writer is not None:
            with deferred:
                with self._guard:
                    was_over, self.is_over = self.is_over, True
                if not was_over:
                    self._release()

    def expire(self, reason: str = "") -> None:
        """Undo everything, because the time is up; the caller gets `TransactionExpired`."""
        with self._guard:
            if self.is_over or self._writer is None:
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
                self._writer.interrupt()
                return  # the thread of the statement rolls back
            self.is_over = True
        self._release()

    def _release(self) -> None:
        """End the transaction of the file, and return the turn."""
        with deferred:
            self._end()

    def _end(self) -> None:
        try:
            self._transaction.__exit__(None, None, None)
        finally:
            self._transactor.return_turn()
            if self._on_end is not None:
                self._on_end()


class WriterTurns:
    """Gives the writer's turn to callers of a store, one after the other."""

    def __init__(
        self,
        engine: Engine,
        transactor: Transactor,
        committer: StoreCommitter,
        recovery: Recovery,
        clock: Clock,
    ) -> None:
        self._engine, self._transactor, self._committer = engine, transactor, committer
        self._recovery = recovery
        self._limit = TimeLimit(clock)
        self.close, self.end_own = self._limit.close, self._limit.end_own

    def begin(self, timeout_s: float, *, on_end: Callable[[], None] | None = None) -> WriterTurn:
        """Take the writer's turn for an interactive transaction of at most `timeout_s` seconds.

        `on_end` is called once, on any thread, when other writers go on.
        """
        engine, transactor = self._engine, self._transactor
        check_interactive(engine)
        transactor.refuse_holder()
        if self._recovery.reason is not None:
            self._recovery.attempt()
        turn = WriterTurn(engine, transactor, self._committer, timeout_s=timeout_s, on_end=on_end)
        turn.begin(self._limit)
        return turn


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
