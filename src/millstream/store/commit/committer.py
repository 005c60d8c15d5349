"""The committer of a store: turns the operations of a group, or a slice of the fold, into one commit.

Operations run on the state, under the mutex. Their writes become durable as one value, and then
readers see the new state. Every ticket of a group gets a result or an error, also if the commit fails.
No signal handler runs meanwhile (`interrupts`).

A slice of the fold (see `fold`) is an ordinary commit: it is written in the writer's turn, and readers
do not wait for the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.engine.commit import Commit
from millstream.engine.protocol import WouldWait, Writer
from millstream.errors import DiskFull, MillstreamError, OutcomeUnknown
from millstream.interrupts import deferred
from millstream.store.commit.draft import Draft
from millstream.store.commit.group import run_alone, run_group
from millstream.store.commit.listeners import Listeners
from millstream.store.commit.ticket import Ticket, finish
from millstream.store.commit.transaction import Operation, WriteTransaction
from millstream.store.commit.transactor import error_for_callers
from millstream.store.state.delta import fold_position
from millstream.store.state.fold import Slice, write_slice
from millstream.store.state.reader import StateReader

T = TypeVar("T")


class StoreCommitter:
    """Commits groups, and folds; the store adds callers, background work and recovery.

    `turn` is the writer's turn. `begin_recovery` refuses writes until the content of the disk is
    certain. `is_refused` tells whether the store is closed, poisoned or recovering. `wake_keeper`
    starts upkeep.
    """

    def __init__(
        self,
        reader: StateReader,
        turn: threading.Lock,
        listeners: Listeners,
        *,
        begin_recovery: Callable[[BaseException], None],
        is_refused: Callable[[], bool],
        wake_keeper: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._turn = turn
        self._listeners = listeners
        self._begin_recovery = begin_recovery
        self._is_refused = is_refused
        self._wake_keeper = wake_keeper
        self._engine, self._limits, self._clock = reader.engine, reader.limits, reader.clock
        self._mutex, self._state = reader.mutex, reader.state
        self._folder = self._engine.folder()
        """The folder in which a large commit is spooled."""
        self._folding = threading.Lock()
        limits = self._limits
        self._tail_deltas_noticed = min(limits.fold_deltas_min, limits.tail_deltas_max)
        self._tail_bytes_noticed = min(limits.fold_bytes_min, limits.tail_bytes_max)
        """With a shorter tail there is nothing to fold: most commits compare three numbers."""
        self.groups = self.operations = self.folds = 0
        self.own_seq = 0
        """The sequence of the last commit of this process."""
        self._folded_before = -1
        self._sent = False
        """Whether the current commit was handed to the engine, so that its rows may be on disk."""
        self._sync_s = 0.0
        """The duration of the last sync that was timed."""
        self._lock_s = 0.0
        """How long the last timed commit waited for the lock of other processes."""
        self.last_failure: str | None = None
        self._kept = False

    def commit_held(
        self,
        operation: Operation[T],
        writer: Writer,
        *,
        has_written: bool,
        refusal: DiskFull | None,
    ) -> T:
        """Run the operation of an interactive transaction, and commit it with the statements before it.

        The caller has begun the transaction of the writer, and ends it. If the operation fails, nothing
        is committed. `has_written` tells whether statements have changed the application's tables.
        """
        ticket = Ticket(operation)
        self._sent = False
        began_s = self._clock.seconds() if self._listeners.commit else 0.0
        self._lock_s = 0.0
        try:
            self._write([ticket], writer, refusal=refusal, has_written=has_written)
        except BaseException as error:
            self._fail([ticket], error)
            if not isinstance(error, Exception):
                raise
        if ticket.error is not None:
            raise ticket.error
        self._conclude(1, began_s, folds=True)
        return ticket.result  # type: ignore[return-value]

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        """Run the operations of a group and commit their changes, in the turn of the committing caller.

        Every ticket gets a result or an error. Return False and do nothing if a signal comes while
        another process writes; without `waits`, also if the group would have to wait for more than its
        own commit. Raise only what ends the thread (no `Exception`), after every ticket has its error.
        """
        if not waits and self._tail_is_full():
            return False
        joined: list[Ticket[Any]] = []
        for listen in self._listeners.group:
            joined += listen(group)
        tickets = [*group, *joined] if joined else group
        self._sent = False
        try:
            shortage = self._engine.shortage()
            if shortage is not None and shortage.is_severe:
                for ticket in tickets:
                    ticket.error = shortage.error()
                return True
            refusal = None if shortage is None else shortage.error()
            began_s = self._clock.seconds() if self._listeners.commit else 0.0
            with self._engine.write(waits=waits) as writer:
                if began_s:
                    self._lock_s = self._clock.seconds() - began_s
                self._write(tickets, writer, refusal=refusal)
            self._conclude(len(tickets), began_s, folds=waits)
        except WouldWait:
            return False
        except BaseException as error:
            self._fail(tickets, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if joined:
                finish(joined)
        return True

    def _write(
        self,
        group: list[Ticket[Any]],
        writer: Writer,
        *,
        refusal: DiskFull | None,
        has_written: bool | None = None,
    ) -> None:
        """Run the operations of a group in the transaction of a writer, commit, and publish.

        `has_written` is given for the only operation of an interactive transaction. If that operation
        fails, nothing is committed.
        """
        reader, state, limits = self._reader, self._state, self._limits
        with self._mutex:
            if (reader.is_stale or writer.last_seq() != state.seq) and reader.advance(writer):
                reader.publish()
            transaction = WriteTransaction(
                state, writer, limits, folder=self._folder, refusal=refusal
            )
            try:
                if len(group) == 1:
                    run_alone(transaction, group[0])
                else:
                    run_group(transaction, group)
                if has_written is not None:
                    if group[0].error is not None:
                        return
                    transaction.note_statements(have_written=has_written)
                commit = transaction.finish()
                for listen in self._listeners.delta:
                    listen(transaction.delta)
                if commit is not None:
                    state.pending = transaction
                    if transaction.delta.drops:
                        state.overlay.is_dropping = True
            except BaseException:
                reader.is_stale = True  # a part of the group has changed the state
                raise
        # The mutex is free during the sync, so that readers can use it. A pipelined commit would
        # start here: the next group could run on this state, if it were answered after this commit.
        if commit is not None:
            self.sync(writer, commit)
        with self._mutex:
            if commit is not None:
                if state.pending is transaction:
                    state.land(transaction)
                else:
                    reader.advance_to(transaction.delta.seq)
                reader.publish()
                self.own_seq = state.seq
                self.groups += 1
            if len(state.entities) > limits.entities_cached_max or (
                state.weight > limits.entities_weight_max
            ):
                state.evict(limits.entities_cached_max, limits.entities_weight_max)

    def _conclude(self, operations: int, began_s: float, *, folds: bool) -> None:
        """Count the operations of a group that was committed, tell listeners, and begin upkeep."""
        self.operations += operations
        listeners = self._listeners
        if listeners.commit and self._sent:
            commit_s = self._clock.seconds() - began_s
            for tell in listeners.commit:
                tell(operations, commit_s, self._sync_s, self._lock_s)
        state = self._state
        if (
            state.seq - state.folded > self._tail_deltas_noticed
            or state.tail_total > self._tail_bytes_noticed
            or len(state.dirty) > self._limits.tail_entities_max
        ):
            was_long = self.tail_is_long()
            if folds and self._tail_is_full():
                self._fold_behind()
            if was_long:
                self._wake_keeper()
        if not self._kept:
            self._kept = True
            self._wake_keeper()

    def sync(self, writer: Writer, commit: Commit) -> None:
        """Hand a commit to the engine, and return when the commit is durable."""
        self._sent = True
        if not self._listeners.commit:
            writer.commit(commit)
            return
        began_s = self._clock.seconds()
        writer.commit(commit)
        self._sync_s = self._clock.seconds() - began_s

    def _fold_behind(self) -> None:
        """Fold now, because the tail has reached its limit; a failure does not undo the last commit."""
        try:
            self.commit_slice()
        except WouldWait:
            pass  # a signal has come, and another process may fold
        except MillstreamError as error:
            self.note_failure(error)

    def _fail(self, group: list[Ticket[Any]], error: BaseException) -> None:
        """Give every ticket of a failed group its error, and begin recovery if the outcome is
        unknown."""
        with self._mutex:
            self._state.failures += 1
            is_known = isinstance(error, MillstreamError) and not isinstance(error, OutcomeUnknown)
            if is_known:
                self._reader.drop()
            else:
                self._reader.is_stale = True
        if not is_known and (self._sent or not isinstance(error, Exception)):
            self._begin_recovery(error)
        for ticket in group:
            if ticket.error is None:
                ticket.error = error_for_callers(error, sent=self._sent)

    def note_failure(self, error: Exception) -> None:
        """Remember a failure of background work, for `stats`."""
        is_ours = isinstance(error, MillstreamError)
        self.last_failure = str(error) if is_ours else repr(error)

    # The fold.

    def _tail_is_full(self) -> bool:
        """Return whether the tail has reached its limit, so that the next commit has to fold."""
        state, limits = self._state, self._limits
        return (
            state.seq - state.folded > limits.tail_deltas_max
            or state.tail_total > limits.tail_bytes_max
            or len(state.dirty) > limits.tail_entities_max
        )

    def tail_is_long(self) -> bool:
        """Return whether the tail is long enough for a fold in the background."""
        state, limits = self._state, self._limits
        return (
            state.seq - state.folded > limits.fold_deltas_min
            or state.tail_total > limits.fold_bytes_min
        )

    def tail_is_ours(self) -> bool:
        """Return whether this process should fold: it wrote to the tail, or no other process folds."""
        self._reader.look(lambda state, snapshot: state.folded_through(fold_position(snapshot)))
        folded, before = self._state.folded, self._folded_before
        self._folded_before = folded
        return self.tail_is_long() and (self.own_seq > folded or folded == before)

    def fold_for(self, time_s: float | None) -> int:
        """Fold the current tail slice by slice while there is time; return the number of folded
        commits."""
        target, before = self._state.seq - 1, self._state.folded
        until_s = None if time_s is None else self._clock.seconds() + time_s
        while self._state.folded < target and self.fold_slice():
            if until_s is not None and self._clock.seconds() >= until_s:
                break
        return self._state.folded - before

    def fold_slice(self) -> bool:
        """Fold a slice, or notice that another process did; return False if the tail is empty.

        A slice with many rows is prepared outside of the writer's turn, beside running commits.
        """
        while True:
            try:
                with self._folding:
                    return self._fold_slice()
            except WouldWait:
                pass  # a signal ended the wait for another process, and its handler raised nothing

    def _fold_slice(self) -> bool:
        with self._turn:
            with self._mutex:
                planned = None if self._reader.is_stale else Slice(self._state, self._limits)
            if planned is None or planned.is_light:
                return self.commit_slice()
        planned.prepare()
        with self._turn:
            return self.commit_slice(planned) or self._state.folded > planned.folded

    def commit_slice(self, prepared: Slice | None = None) -> bool:
        """Write a slice and commit it; the caller holds the writer's turn.

        Raise `WouldWait` and do nothing if a signal comes while another process writes.
        """
        if self._is_refused():
            return False
        with deferred:
            return self._commit_slice(prepared)

    def _commit_slice(self, prepared: Slice | None) -> bool:
        self._sent = False
        try:
            with self._engine.write() as writer:
                with self._mutex:
                    if self._reader.advance(writer):
                        self._reader.publish()
                    draft = Draft(writer, self._folder)
                    through, written = write_slice(
                        self._state,
                        draft,
                        self._limits,
                        prepared,
                        may_lose="replicated" not in self._engine.abilities,
                    )
                if through:
                    self.sync(writer, draft.finish())
                with self._mutex:
                    if through:
                        self._state.folded_through(through, written)
                        self._folded_before = self._state.folded
                        self.folds += 1
        except WouldWait:
            raise
        except BaseException as error:
            self._fail([], error)
            raise
        return through > 0
