"""The store: an engine, the state over it, and the one path by which anything becomes true.

Every mutation is a function run inside a transaction; a group of them is committed with one sync;
then readers see it, waiters wake, and callers are answered, in this order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from millstream.clock import Clock, SystemClock
from millstream.errors import (
    CannotOpen,
    Closed,
    MillstreamError,
    OutcomeUnknown,
    Poisoned,
    WriteFailed,
)
from millstream.format import keys
from millstream.limits import Limits
from millstream.store import delta as deltas
from millstream.store import forking
from millstream.store.engine import Engine, Snapshot, Writer
from millstream.store.entity import Kind, Kinds
from millstream.store.fold import Slice, write_slice
from millstream.store.group import run_group
from millstream.store.instance import Instance, create_instance
from millstream.store.keeper import UPKEEP_S, Keeper
from millstream.store.rescue import Rescue
from millstream.store.state import Pin, Readers, State
from millstream.store.ticket import Ticket
from millstream.store.transaction import Operation, Transaction
from millstream.store.transactor import Transactor, fresh
from millstream.store.watch import Watch

T = TypeVar("T")
Upkeep = Callable[["Store"], bool]
"""A view's background work, a bounded piece per call; True if there is more to do now.

If a call goes round several logs or queues, it ends early once the store `is_closing`."""

Observer = Callable[[int, float, float], None]
"""Told of each group that was committed: its operations, its time and that of its sync, in seconds."""


CLOSING_FOLD_S = 1.0
"""How long closing folds; what is then unfolded stays so, and is read when the store is opened."""


class Store:
    """One open store. All methods may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        kinds: Kinds,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        upkeep: tuple[Upkeep, ...] = (),
        pins: tuple[Pin, ...] = (),
        readers: tuple[Readers, ...] = (),
    ) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self.clock = clock or SystemClock()
        self._kinds = {**kinds, keys.STORE: Kind(Instance)}
        self._pins, self._readers = pins, readers
        self.state = State(self._kinds, self.clock, pins, readers)
        self._upkeep = upkeep
        self._stale = True
        self._seen_seq = -1
        self._reason: MillstreamError | None = None
        self._groups = 0
        self._operations = 0
        self._folds = 0
        self._own_seq, self._folded_before = 0, -1
        self._last_failure: str | None = None
        self._kept = False
        self._sent = False
        self._sending: tuple[list[Ticket[Any]], int, bytes] | None = None
        """The group whose delta was written last, its sequence, and its bytes."""
        self.settled: list[Ticket[Any]] | None = None
        """The last group whose tickets all have their result or their error."""
        self.scratch: dict[Any, Any] = {}
        """What views remember to be faster; anything in it may be forgotten at any time."""
        self.on_commit: Observer | None = None
        """Called under the mutex, on whichever thread commits: it must be quick."""
        self.is_closing = False
        """Whether upkeep shall leave the rest to the next one that opens the store."""
        self._upkeep_due = 0.0
        self._sync_s = 0.0
        self._begin()
        with self._transactor.mutex:
            self._initialise()
        forking.register(self)

    # Mutations.

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return when its effect is durable."""
        if self._pid != os.getpid():
            self._refuse_fork()
        return self._transactor.run(operation)

    def submit(self, tickets: list[Ticket[Any]]) -> None:
        """Hand in operations whose tickets call back when they are durable."""
        if self._pid != os.getpid():
            self._refuse_fork()
        self._transactor.submit(tickets)

    # Reads.

    def refresh(self) -> bool:
        """See what other processes have committed; True if there was anything."""
        self._check_usable()
        if not self._stale and (not self.engine.shared or self.engine.last_seq() == self._seen_seq):
            return False
        with self._transactor.mutex, self.engine.read() as snapshot:
            advanced = self._advance(snapshot)
            if advanced:
                self._publish()
        return advanced

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Ask the state something, with everybody's commits in it; the mutex is held meanwhile."""
        self._check_usable()
        with self._transactor.mutex, self.engine.read() as snapshot:
            if self._advance(snapshot):
                self._publish()
            answer = question(self.state, snapshot)
            self.state.evict(self.limits.entities_cached_max, self.limits.entities_weight_max)
            return answer

    def seen(self, key: bytes) -> Any:
        """What readers see of an entity, as of the last `refresh` or commit."""
        found = self.state.visible.get(key)
        if found is None:
            found = self.look(lambda state, snap: state.show(key, state.entity(key, snap)))
        return found

    def wait(self, key: bytes, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `ready()`, asked again whenever the entity of `key` may have changed."""
        if ready():
            return True
        deadline = None if timeout_s is None else self.clock.seconds() + timeout_s
        changed = threading.Event()
        with self.watch.waiting(key, changed.set):
            while not ready():
                left = None if deadline is None else deadline - self.clock.seconds()
                if left is not None and left <= 0:
                    return False
                changed.wait(left)
                changed.clear()
        return True

    # Upkeep.

    def fold(self) -> int:
        """Fold everything that is unfolded now; answers how many commits were folded."""
        return self._fold_for(None)

    def tend_soon(self) -> None:
        """Have the views' upkeep done now rather than within a second."""
        self._upkeep_due = 0.0
        self._keeper.wake()

    def stats(self) -> dict[str, Any]:
        """Facts and counters of this handle."""
        return {
            **self.engine.describe(),
            "sequence": self.state.seq,
            "unfolded_commits": self.state.seq - self.state.folded,
            "unfolded_bytes": self.state.tail_total,
            "unfolded_entities": len(self.state.dirty),
            "commits": self._groups,
            "operations": self._operations,
            "fold_slices": self._folds,
            "entities_cached": len(self.state.entities),
            "last_upkeep_failure": self._last_failure,
        }

    def close(self) -> None:
        """Finish the running commit, fold a long tail for a while, and let go; again does nothing."""
        if isinstance(self._reason, Closed):
            return
        poisoned = self._reason is not None
        self.is_closing = True
        if self._pid == os.getpid():
            self._keeper.stop()
            if not poisoned and self._tail_is_long():
                with suppress(MillstreamError):  # the tail stays, and is read when opening
                    self._fold_for(CLOSING_FOLD_S)
        path = self.engine.describe().get("path", "the store")
        self._reason = Closed(f"{path} was closed", path=path)
        self._transactor.close(self._reason)
        self.watch.close()
        with self._transactor.mutex:
            self.engine.close()

    # The commit path.

    def commit_group(self, group: list[Ticket[Any]]) -> None:
        """Run the operations of a group and commit them; called under the mutex.

        If its thread is interrupted meanwhile, the commit is finished, and then the interrupt raised.
        """
        try:
            self._commit_group(group)
        except MillstreamError as error:
            self._fail(group, error)
        except BaseException as error:
            rescue = Rescue(lambda: self._complete(group), error)
            rescue.finish()
            if rescue.failure is not None:
                self._fail(group, rescue.failure)
            self.settled = group
            told = [rescue.failure, *(ticket.error for ticket in group)]
            again = any(type(one) is type(error) for one in told)
            if not (again and isinstance(error, Exception)):
                raise  # it came from outside: what comes from an operation, comes again
        self.settled = group

    def _commit_group(self, group: list[Ticket[Any]]) -> None:
        self._sent = False
        began_s = 0.0 if self.on_commit is None else self.clock.seconds()
        with self.engine.write() as writer:
            self._advance(writer)
            transaction = Transaction(self.state, writer, self.limits)
            run_group(transaction, group)
            delta = transaction.finish()
            if delta is not None:
                self._write(delta, writer, group)
        self._publish()
        self._operations += len(group)
        if self.on_commit is not None and self._sent:
            self.on_commit(len(group), self.clock.seconds() - began_s, self._sync_s)
        self._after_commit()

    def _complete(self, group: list[Ticket[Any]]) -> None:
        """Finish what an interrupt broke off: what is on disk says how far it had come."""
        self._stale = True
        if self._sending is not None and self._sending[0] is group and self._has_landed():
            with self.engine.read() as snapshot:
                self._advance(snapshot)
            self._publish()
            return
        for ticket in group:
            ticket.result = ticket.error = None
        self._commit_group(group)

    def _has_landed(self) -> bool:
        """Whether the delta that was written last is durable."""
        assert self._sending is not None
        _, seq, data = self._sending
        with self.engine.read() as snapshot:
            found = snapshot.get(keys.delta(seq))
            if found is None and snapshot.first_seq() > seq:
                raise OutcomeUnknown("the commit was interrupted, and then folded by others")
        return found == data

    def _write(
        self, delta: deltas.Delta, writer: Writer, group: list[Ticket[Any]] | None = None
    ) -> None:
        data = deltas.encode(delta)
        self.state.check(delta, data)
        if group is not None:
            self._sending = (group, delta.seq, data)
        writer.put([(keys.delta(delta.seq), data)])
        self._sent = True
        began_s = 0.0 if self.on_commit is None else self.clock.seconds()
        writer.commit()
        self._sync_s = 0.0 if self.on_commit is None else self.clock.seconds() - began_s
        self.state.committed(delta, len(data))
        self._own_seq = delta.seq
        self._groups += 1

    def _publish(self) -> None:
        changed = self.state.publish()
        self._seen_seq = self.state.seq
        if self.state.reloaded:
            self.state.reloaded = False
            self.watch.wake_all()
        else:
            self.watch.notify(changed)

    def _after_commit(self) -> None:
        state, limits = self.state, self.limits
        state.evict(limits.entities_cached_max, limits.entities_weight_max)
        unfolded, size = state.seq - state.folded, state.tail_total
        if (
            unfolded > limits.tail_deltas_max
            or size > limits.tail_bytes_max
            or len(state.dirty) > limits.tail_entities_max
        ):
            self._fold_behind()
        long = unfolded > limits.fold_deltas_min or size > limits.fold_bytes_min
        if long or not self._kept or self.engine.wants_tending():
            self._kept = True
            self._keeper.wake()

    def _fold_behind(self) -> None:
        """The tail is as long as it may be: fold now. What was just committed stays committed."""
        try:
            self._fold_slice(locked=True)
        except MillstreamError as error:
            self._keeper_failed(error)

    def _tail_is_long(self) -> bool:
        state, limits = self.state, self.limits
        return (
            state.seq - state.folded > limits.fold_deltas_min
            or state.tail_total > limits.fold_bytes_min
        )

    def _tail_is_ours(self) -> bool:
        """Whether it is for this process to fold: it has commits in there, or others do not fold."""
        self.look(lambda state, snapshot: state.folded_through(snapshot.first_seq() - 1))
        folded, before = self.state.folded, self._folded_before
        self._folded_before = folded
        return self._tail_is_long() and (self._own_seq > folded or folded == before)

    def _fail(self, group: list[Ticket[Any]], error: BaseException) -> None:
        """Nothing of the group was acknowledged; tell everyone what is known."""
        self._stale = True
        known = isinstance(error, MillstreamError) and not isinstance(error, OutcomeUnknown)
        if not known and (self._sent or not isinstance(error, Exception)):
            self._poison(error)
        for ticket in group:
            if ticket.error is None:
                ticket.error = _told(error, sent=self._sent)

    def _poison(self, cause: BaseException) -> None:
        reason = Poisoned(
            f"a write failed ({str(cause) or type(cause).__name__}); close this handle and open the store again: "
            "everything that was acknowledged is there",
            cause=str(cause),
        )
        self._reason = reason
        self._transactor.refuse(reason)
        self.watch.wake_all()

    def _advance(self, snapshot: Snapshot) -> bool:
        """Bring the state up to a snapshot; if that fails half-way, the next one starts over."""
        stale, self._stale = self._stale, True
        if stale:
            self.state.load(snapshot)
        advanced = stale or self.state.advance(snapshot)
        self._stale = False
        return advanced

    # The background.

    def _fold_for(self, most_s: float | None) -> int:
        """Fold what is unfolded now, slice by slice while there is time; how many commits."""
        self._check_usable()
        target, before = self.state.seq - 1, self.state.folded
        until_s = None if most_s is None else self.clock.seconds() + most_s
        while self.state.folded < target and self._fold_slice():
            if until_s is not None and self.clock.seconds() >= until_s:
                break
        return self.state.folded - before

    def _fold_slice(self, *, locked: bool = False) -> bool:
        """Fold one slice, here or seen to be done elsewhere; False if there was nothing to do.

        Many rows are joined beside running commits, unless `locked` says that the mutex is held
        already.
        """
        if locked:
            return self._write_slice()
        with self._folding:
            with self._transactor.mutex:
                found = None if self._stale else Slice(self.state, self.limits)
                if found is None or found.is_light:
                    return self._write_slice()
            found.prepare()
            with self._transactor.mutex:
                return self._write_slice(found) or self.state.folded > found.folded

    def _write_slice(self, prepared: Slice | None = None) -> bool:
        if self._reason is not None:
            return False
        self._sent = False
        try:
            with self.engine.write() as writer:
                advanced = self._advance(writer)
                through = write_slice(self.state, writer, self.limits, prepared)
                if through:
                    self._sent = True
                    writer.commit()
                    self.state.folded_through(through)
                    self._folded_before = self.state.folded
                    self._folds += 1
        except MillstreamError as error:
            self._fail([], error)
            raise
        except BaseException:  # interrupted: what is on disk says how far it had come
            self._stale = True
            raise
        if advanced:
            self._publish()
        return through > 0

    def _keep(self) -> bool:
        more = self._tail_is_long() and self._tail_is_ours() and self._fold_slice()
        if self.engine.wants_tending() and self.engine.tend():
            with self._transactor.mutex:
                self.engine.tend_exclusively()
        if self.clock.seconds() >= self._upkeep_due:
            self.engine.notice_others()
            if sum(task(self) for task in self._upkeep):
                return True
            self._upkeep_due = self.clock.seconds() + UPKEEP_S
        return more

    def _keeper_failed(self, error: MillstreamError) -> None:
        self._last_failure = str(error)

    # Beginning, and forks.

    def _begin(self) -> None:
        self._pid: int = os.getpid()
        self._folding = threading.Lock()
        self._kept = False
        self._upkeep_due = self.clock.seconds() + UPKEEP_S
        limits = self.limits
        self._transactor: Transactor = Transactor(
            self,
            self.clock,
            waiting_max=limits.waiting_operations_max,
            group_max=limits.group_operations_max,
        )
        self._keeper: Keeper = Keeper(self._keep, on_failure=self._keeper_failed)
        self.watch: Watch = Watch(self.refresh if self.engine.shared else None)

    def _initialise(self) -> None:
        with self.engine.read() as snapshot:
            if snapshot.last_seq():
                self._advance(snapshot)
                self._publish()
                return
        with self.engine.write() as writer:
            self._advance(writer)
            if self.state.seq == 0:
                transaction = Transaction(self.state, writer, self.limits)
                transaction.run(create_instance)
                self._write(transaction.delta, writer)
        self._publish()

    def before_fork(self) -> None:
        """Finish the running commit and let go of the engine's handles, until `after_fork`."""
        self._transactor.mutex.acquire()
        self.engine.suspend()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the parent; in the child start from what is on disk."""
        self.engine.resume(in_child=in_child)
        if not in_child:
            self._transactor.mutex.release()
            return
        self.state = State(self._kinds, self.clock, self._pins, self._readers)
        self._stale = True
        self._begin()
        if self._reason is not None:
            self._transactor.refuse(self._reason)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            self._refuse_fork()
        if self._reason is not None:
            raise fresh(self._reason)

    def _refuse_fork(self) -> None:
        raise CannotOpen(
            "this process was forked by native code, which Python was not told of; "
            "open the store in the child instead of before the fork"
        )


def _told(error: BaseException, *, sent: bool) -> MillstreamError:
    """What the callers of a failed group are told."""
    if isinstance(error, MillstreamError):
        return fresh(error)
    text = f"{type(error).__name__}: {error}"
    if sent or not isinstance(error, Exception):
        return OutcomeUnknown(f"the commit was interrupted by {text}", cause=text)
    return WriteFailed(f"nothing was stored: {text}", cause=text)
