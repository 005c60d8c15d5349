"""The store: an engine, the state over it, and the single path of commits.

A mutation is a function that runs inside a transaction. A group of mutations is committed with one sync.
After the sync readers see the changes, waiters wake, and callers are answered, in this order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, cast

from millstream.clock import Clock, SystemClock
from millstream.engine import process_fork
from millstream.engine.protocol import Engine, SqlEngine, pace_of
from millstream.engine.scrub import Scrub
from millstream.errors import (
    CannotOpen,
    Closed,
    CorruptionError,
    MillstreamError,
    OutcomeUnknown,
    Poisoned,
)
from millstream.format import keys
from millstream.limits import Limits
from millstream.store.caches import Caches
from millstream.store.commit.committer import StoreCommitter
from millstream.store.commit.listeners import Listeners
from millstream.store.commit.recovery import Recovery
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import Operation, WriteTransaction
from millstream.store.commit.transactor import Transactor, fresh
from millstream.store.commit.writer_turn import WriterTurn, WriterTurns
from millstream.store.keeper import Keeper
from millstream.store.links import NO_LINKS, Links
from millstream.store.state.entity import Kinds
from millstream.store.state.instance import Instance, create_instance
from millstream.store.state.reader import StateReader
from millstream.store.state.state import Joiner
from millstream.store.upkeep import UpkeepSchedule
from millstream.store.watch import Watch

T = TypeVar("T")
Upkeep = Callable[["Store"], bool]
"""Does a bounded piece of background work; returns True if more work is due now.

A call that visits several logs or queues ends early once the store `is_closing`."""

Condition = Literal["usable", "disk_full", "recovering", "poisoned", "closed"]
"""The condition of a handle; reads work with a full disk and during recovery."""


class PostIntake(Protocol):
    """Moves messages that other programs have written beside the store into the store."""

    def is_waiting(self, store: Store, /) -> bool:
        """Return whether there are messages to move; called every few milliseconds."""

    def move(self, store: Store, /) -> bool:
        """Move some messages by ordinary commits; return whether more may wait."""


CLOSING_FOLD_S = 1.0
"""The time limit of the fold at closing; opening reads the remaining deltas."""


class Store:
    """An open store, for any thread: a reader, a committer, and the callers and upkeep around them."""

    def __init__(
        self,
        engine: Engine,
        kinds: Kinds,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        upkeep: tuple[Upkeep, ...] = (),
        intake: PostIntake | None = None,
        parts: tuple[object, ...] = (),
        join_rows: Joiner = list,
        links: Links = NO_LINKS,
        listeners: Listeners | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self.clock = clock or SystemClock()
        self.listeners = listeners or Listeners()
        self._kinds: Kinds = {**kinds, keys.STORE: Instance}
        self._parts, self._join_rows = parts, join_rows
        self._reason: MillstreamError | None = None
        """The reason why the handle was closed or poisoned."""
        self._upkeep = UpkeepSchedule(
            [partial(task, self) for task in upkeep],
            self.clock,
            written=lambda: self.committer.operations + self.committer.folds,
        )
        self._intake = intake
        self._links = links
        self.caches = Caches()
        self._begin()
        with self._transactor.turn:
            self._initialise()
        process_fork.register(self)
        self._keeper.start_looking()

    # Reads.

    @property
    def seq(self) -> int:
        """The sequence of the newest visible commit."""
        return self.views.seq

    @property
    def is_committing(self) -> bool:
        """Whether a new operation would have to wait for a commit, or could never run."""
        return self.engine.read_only or self._transactor.turn.locked()

    def hold(self) -> AbstractContextManager[object]:
        """Return a block in which no commit and no fold begins; operations wait meanwhile."""
        return self._transactor.turn

    # Mutations. `run` is a method of the transactor.

    def attempt(self, operation: Operation[T]) -> Ticket[T] | None:
        """Run an operation as `run` does; return None and do nothing if it had to wait.

        An operation waits for commits of any process. A read-only store also returns None.
        """
        if self.engine.read_only:
            return None
        if self._pid != os.getpid():
            raise process_fork.native_fork()
        if self.recovery.reason is not None:
            self.recovery.attempt()
        return self._transactor.attempt(operation, waits=self.engine.writes_alone)

    def begin(self, timeout_s: float, *, on_end: Callable[[], None] | None = None) -> WriterTurn:
        """Take the writer's turn for an interactive transaction; see `WriterTurns.begin`."""
        if self._pid != os.getpid():
            raise process_fork.native_fork()
        return self._turns.begin(timeout_s, on_end=on_end)

    def submit(self, tickets: list[Ticket[Any]], *, light: bool = False) -> None:
        """Submit operations whose tickets call back when they are durable.

        The calling thread commits light operations, if commits are fast and none is in flight.
        """
        if self._pid != os.getpid():
            raise process_fork.native_fork()
        self._transactor.submit(tickets, light=light)

    @property
    def is_fast(self) -> bool:
        """Whether commits are fast enough for an event loop to make light commits itself."""
        return self._transactor.is_fast

    # Upkeep.

    def fold(self) -> int:
        """Fold the current tail; return the number of folded commits."""
        self._transactor.refuse_holder()
        self.recovery.attempt()
        if self.recovery.reason is not None:
            raise fresh(self.recovery.reason)
        self._check_usable()
        return self.committer.fold_for(None)

    def start_keeper(self) -> None:
        """Do upkeep every second from now on, even without writes."""
        self._keeper.start()

    def tend_soon(self) -> None:
        """Do upkeep now rather than within a second."""
        self._upkeep.request()
        self._keeper.wake()

    def tend(self) -> None:
        """Do all due upkeep on the caller's thread.

        The background thread pauses meanwhile: two threads would each leave work to the other.
        """
        with self._keeper.pause():
            while self._upkeep.run():
                pass

    def pause_keeper(self) -> AbstractContextManager[object]:
        """Pause background work until the returned block ends, or until the store is closed."""
        return self._keeper.pause()

    def stats(self) -> dict[str, Any]:
        """Return facts and counters of this handle."""
        return {
            **self.engine.describe(),
            "path": self.engine.place,
            "sequence": self.state.seq,
            "unfolded_commits": self.state.seq - self.state.folded,
            "unfolded_bytes": self.state.tail_total,
            "unfolded_entities": len(self.state.dirty),
            "commits": self.committer.groups,
            "operations": self.committer.operations,
            "fold_slices": self.committer.folds,
            "entities_cached": len(self.state.entities),
            "last_upkeep_failure": self.committer.last_failure,
            "condition": self.condition,
            **self.scrub.report(),
        }

    def scrub_from_now(self, share: float) -> None:
        """Scrub for a share of the time from now on, even without writes."""
        self.scrub.share = share
        if share:
            self._keeper.wake()

    @property
    def is_closing(self) -> bool:
        """Whether upkeep should stop, and leave its work to the next opened handle."""
        return self._upkeep.is_ending

    @property
    def condition(self) -> Condition:
        """The condition of the handle: usable, read-only for a while, or unusable."""
        if self._reason is not None:
            return "closed" if isinstance(self._reason, Closed) else "poisoned"
        if self.recovery.reason is not None:
            return "recovering"
        return "disk_full" if self.engine.shortage() is not None else "usable"

    def close(self) -> None:
        """Finish the running commit, do upkeep for a moment, and close the engine; idempotent."""
        if isinstance(self._reason, Closed):
            return
        self._transactor.refuse_holder()
        self._upkeep.end()
        if self._pid == os.getpid():
            self._keeper.stop()
            self.scrub.close()
            self.recovery.attempt()
            usable = self._reason is None and self.recovery.reason is None
            usable = usable and not self.engine.read_only
            if usable and not self._keeper.is_paused:
                self._upkeep.run_last()
            if usable and self.committer.tail_is_long():
                with suppress(MillstreamError):  # the tail stays, and is read when opening
                    self.committer.fold_for(CLOSING_FOLD_S)
        place = self.engine.place
        self._reason = Closed(f"{place} was closed", path=place)
        self._transactor.close(self._reason)
        self.watch.close()
        with self._transactor.turn:
            self.engine.close()
        self._turns.close()

    # After a failed write.

    def _has_intake(self) -> Callable[[], bool] | None:
        if self._intake is None or self.engine.read_only:
            return None
        return partial(self._intake.is_waiting, self)

    def _begin_recovery(self, cause: BaseException) -> None:
        """Refuse writes until the content of the disk is certain; the caller holds the writer's turn."""
        text = str(cause) or type(cause).__name__
        self._transactor.refuse(self.recovery.begin(text, seq=self.views.seq))
        self._keeper.wake()

    def _recover(self) -> None:
        """Make all acknowledged commits durable again, and accept writes."""
        try:
            self.engine.recover()
            with self._transactor.turn:
                self._resume()
        except CorruptionError as error:
            with self._transactor.turn:
                self._poison(error)

    def _resume(self) -> None:
        reason, needed = self.recovery.reason, self.recovery.seq
        self.reader.is_stale = True
        with self.engine.read() as snapshot:
            stored = snapshot.last_seq()
        if stored < needed:
            raise CorruptionError(
                f"commit {needed} was acknowledged, and the last one on disk is {stored}",
                what="delta",
                where=stored + 1,
            )
        self.reader.reload()
        if reason is not None:
            self._transactor.admit(reason)
        self.recovery.end()

    def _poison(self, cause: BaseException) -> None:
        """Refuse all calls for good, since an acknowledged commit is missing; in the writer's turn."""
        reason = Poisoned(
            f"a write failed, and then not everything acknowledged was found on disk ({cause}); "
            "close this handle, and see with `millstream doctor` what is lost",
            cause=str(cause),
        )
        self._reason = reason
        self.recovery.end()
        self._transactor.refuse(reason)
        self.watch.wake_all()
        for listen in self.listeners.poison:
            listen(reason)

    # The background.

    def _keep(self) -> bool:
        self.recovery.attempt()
        if self._reason is not None or self.recovery.reason is not None:
            return False
        if self.engine.read_only:  # another node of the cluster folds and does upkeep
            self._tend()
            self.scrub.turn()
            return False
        intake, committer = self._intake, self.committer
        has_moved = intake is not None and intake.is_waiting(self) and intake.move(self)
        has_more = committer.tail_is_long() and committer.tail_is_ours() and committer.fold_slice()
        has_more = has_more or has_moved
        self._tend()
        if self._upkeep.is_due:
            if self._upkeep.run():
                return True
            self._upkeep.complete()
            committer.last_failure = None
        if not has_more:
            self.scrub.turn()
        return has_more

    def _lost(self, parent: bytes, child: bytes) -> str:
        return self.view(lambda view: self._links.lost(view, parent, child))

    def _tend(self) -> None:
        try:
            self.engine.upkeep(self._transactor.turn)
        except OutcomeUnknown as error:  # a sync failed: acknowledged rows may not be on disk
            with self._transactor.turn:
                self._begin_recovery(error)
            raise

    def _await_others(self, stop: threading.Event) -> None:
        if self.engine.await_change(-1 if self.reader.is_stale else self.views.seq, stop):
            self.refresh()

    # Beginning, and forks.

    def _begin(self) -> None:
        self._pid: int = os.getpid()
        self._keeper: Keeper = Keeper(
            self._keep,
            on_failure=self._note_failure,
            look=self._has_intake(),
            listen=lambda: cast(SqlEngine, self.engine).write_events(),
        )
        self.recovery: Recovery = Recovery(self._recover, self.clock)
        self.watch: Watch = Watch(
            self._await_others if self.engine.shared else None, on_wait=self._keeper.start
        )
        reader = self._begin_reading()
        limits, turn = self.limits, threading.Lock()
        self.committer: StoreCommitter = StoreCommitter(
            reader,
            turn,
            self.listeners,
            begin_recovery=self._begin_recovery,
            is_refused=lambda: self._reason is not None or self.recovery.reason is not None,
            wake_keeper=self._keeper.wake,
        )
        self._transactor: Transactor = Transactor(
            self.committer,
            self.clock,
            waiting_max=limits.waiting_operations_max,
            group_max=limits.group_operations_max,
            turn=turn,
            pace_s=pace_of(self.engine),
            recover=self.recovery.attempt,
        )
        self.run = self._transactor.run
        self._turns: WriterTurns = WriterTurns(
            self.engine, self._transactor, self.committer, self.recovery, self.clock
        )
        self._upkeep.begin()
        self.scrub: Scrub = Scrub(
            self.engine,
            self.clock,
            whose=lambda: str(self.seen(keys.STORE_KEY).id),
            needs=self._links.needs,
            lost=self._lost,
        )
        self.engine.on_upkeep_due = self._keeper.wake

    def _begin_reading(self) -> StateReader:
        """Make a reader with an empty state, and offer its methods as methods of the store.

        They are attributes, because a method of the store that only calls them would slow down each read.
        """
        reader = self.reader = StateReader(
            self.engine,
            self._kinds,
            limits=self.limits,
            clock=self.clock,
            parts=self._parts,
            join_rows=self._join_rows,
            watch=self.watch,
            check_usable=self._check_usable,
        )
        self.mutex, self.state, self.views = reader.mutex, reader.state, reader.views
        self.look, self.view, self.rows = reader.look, reader.view, reader.rows
        self.seen, self.refresh = reader.seen, reader.refresh
        return reader

    def _note_failure(self, error: Exception) -> None:
        self.committer.note_failure(error)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise process_fork.native_fork()
        if self._reason is not None:
            raise fresh(self._reason)

    def _initialise(self) -> None:
        with self.engine.read() as snapshot:
            last_seq = snapshot.last_seq()
        if last_seq:
            self.reader.reload()
            return
        if self.engine.read_only:
            self.reader.reload()  # raises for rows without commits, which are damage
            place = self.engine.place
            raise CannotOpen(f"the store at {place} is not made yet", path=place)
        with self.engine.write() as writer, self.mutex:
            self.reader.advance(writer)
            if self.state.seq == 0:
                transaction = WriteTransaction(self.state, writer, self.limits)
                transaction.run(create_instance)
                commit = transaction.finish()
                assert commit is not None
                self.committer.sync(writer, commit)
                self.state.land(transaction)
                self.committer.own_seq = self.committer.groups = self.state.seq
            self.reader.publish()

    def before_fork(self) -> None:
        """Finish the running commit, and close the handles of the engine until `after_fork`."""
        self._turns.end_own("the process has forked inside the block of `ms.begin()`")
        for lock in self._resting():
            lock.acquire()
        process_fork.suspend(self.engine)

    def after_fork(self, *, in_child: bool) -> None:
        """Continue in the parent; in the child load the state from the disk."""
        process_fork.resume(self.engine, in_child=in_child)
        if not in_child:
            for lock in self._resting():
                lock.release()
            return
        self.listeners.forget_groups()
        self.caches.clear()  # caches may hold locks and waiting threads of the parent
        failed = self.recovery
        self.scrub.drop()
        self._begin()
        self._reason = self._reason or process_fork.refusal(self.engine)
        if self._reason is not None:
            self._transactor.refuse(self._reason)
        elif failed.reason is not None:
            recovering = self.recovery.begin(failed.reason.data["cause"], seq=failed.seq)
            self._transactor.refuse(recovering)

    def _resting(self) -> tuple[threading.Lock, ...]:
        """Return the locks that are held during a fork, in the order of their acquisition."""
        return self._transactor.turn, self.mutex
