"""The committing half of a store: the operations of a group, or a slice of the fold, become one commit.

They run on the state, under the mutex; what they did to the rows is made durable as one value; then
readers see it. A group whose commit fails, or is interrupted, is settled all the same: each ticket
has its result, or is told what is known.

A slice (see `fold`) is a commit like any other: it is written in the writer's turn, and readers wait
for it as little as for any.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from functools import partial
from typing import Any

from millstream.engine.commit import Commit
from millstream.engine.protocol import WouldWait, Writer
from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.format import keys
from millstream.store.commit.draft import Draft
from millstream.store.commit.group import run_group
from millstream.store.commit.listeners import Listeners
from millstream.store.commit.recovery import Recovery
from millstream.store.commit.ticket import Ticket, finish
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.commit.transactor import told
from millstream.store.commit.uninterrupted import Rescue
from millstream.store.keeper import Keeper
from millstream.store.state.fold import Slice, write_slice
from millstream.store.state.reader import Readable

SLOW_S = 0.02
"""A sync from which on it costs little, beside it, to apply each commit to the standby as well."""


class Committing(Readable):
    """Commits groups, and folds; the store adds callers, the background, and what follows a failure."""

    _folding: threading.Lock
    _keeper: Keeper
    recovery: Recovery

    def __init__(self, *arguments: Any, listeners: Listeners | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.listeners = listeners or Listeners()
        self._folder = self.engine.folder()
        """Where a large commit is spooled."""
        self._groups = self._operations = self._folds = 0
        self._own_seq, self._folded_before = 0, -1
        self._sent = False
        """Whether something of the commit that is made may have reached the disk."""
        self._sync_s = 0.0
        """How long the last commit waited for the disk, of those that were timed."""
        self._last_failure: str | None = None
        self._kept = False
        self._sending: tuple[list[Ticket[Any]], int, bytes] | None = None
        """The group whose delta was written last, its sequence, and its bytes."""
        self.settled: list[Ticket[Any]] | None = None
        """The last group whose tickets all have their result or their error."""

    @abstractmethod
    def _begin_recovery(self, cause: BaseException) -> None:
        """Refuse writes until what is on disk is certain."""

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        """Run the operations of a group and commit them; called by the committer, in its turn.

        Every ticket has its result or its error then. Raises nothing but what has interrupted its
        thread, once the commit is finished. Without `waits`, nothing is done if more than the commit
        itself would have to be waited for: False.
        """
        if not waits and (self._promised or self._tail_is_full()):
            return False
        joined: list[Ticket[Any]] = []
        for listen in self.listeners.group:
            joined += listen(group)
        if not joined:
            return self._commit_or_settle(group, group, waits=waits)
        try:
            return self._commit_or_settle(group, [*group, *joined], waits=waits)
        finally:
            try:
                finish(joined)
            except BaseException:  # interrupted: a second call does what is left
                finish(joined)
                raise

    def _commit_or_settle(
        self, group: list[Ticket[Any]], whole: list[Ticket[Any]], *, waits: bool
    ) -> bool:
        """Commit a group and the operations that joined it; False, and nothing done, if it had to wait."""
        try:
            self._commit_group(whole, waits=waits)
        except WouldWait:
            return False
        except MillstreamError as error:
            self._fail(whole, error)
        except BaseException as error:
            rescue = Rescue(partial(self._complete, whole), error)
            rescue.finish()
            if rescue.failure is not None:
                self._fail(whole, rescue.failure)
            self.settled = group
            told = [rescue.failure, *(ticket.error for ticket in whole)]
            again = type(error) in map(type, told)
            if not (again and isinstance(error, Exception)):
                raise  # it came from outside: what comes from an operation, comes again
        self.settled = group
        return True

    def _commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> None:
        self._sent = False
        shortage = self.engine.shortage()
        if shortage is not None and shortage.is_severe:
            for ticket in group:
                ticket.error = shortage.error()
            return
        refusal = None if shortage is None else shortage.error()
        listeners = self.listeners
        began_s = self.clock.seconds() if listeners.commit else 0.0
        if self._promised:
            self._let_read()
        state, limits = self.state, self.limits
        with self.engine.write(waits=waits) as writer:
            with self.mutex:
                self._ahead = True
                self._advance(writer)
                draft = Draft(writer, self._folder)
                transaction = WriteTransaction(state, draft, limits, refusal=refusal)
                run_group(transaction, group)
                commit = transaction.finish()
                for listen in listeners.delta:
                    listen(transaction.delta)
            # Readers have the mutex while the disk is waited for. The seam for pipelining: the next
            # group may run on this state from here on, if it is answered after this commit.
            if commit is not None:
                self._sending = (group, transaction.delta.seq, transaction.encoded)
                self._sync(writer, commit)
            with self.mutex:
                if commit is not None:
                    state.committed(transaction.delta, len(transaction.encoded))
                    self._own_seq = state.seq
                    self._groups += 1
                self._publish(state)
                state.evict(limits.entities_cached_max, limits.entities_weight_max)
                self._ahead = False
                if self._patient:
                    self._fall_level()
        self._operations += len(group)
        if listeners.commit and self._sent:
            commit_s = self.clock.seconds() - began_s
            for tell in listeners.commit:
                tell(len(group), commit_s, self._sync_s)
        self._after_commit(folds=waits)

    def _sync(self, writer: Writer, commit: Commit) -> None:
        """Hand a commit to the engine, and wait until it is durable."""
        self._sent = True
        if not self.listeners.commit and not self.standby.is_used:
            writer.commit(commit)
            return
        began_s = self.clock.seconds()
        writer.commit(commit)
        self._sync_s = self.clock.seconds() - began_s

    def _complete(self, group: list[Ticket[Any]]) -> None:
        """Finish what an interrupt broke off: what is on disk says how far it had come."""
        self._stale = True
        if self._sending is not None and self._sending[0] is group and self._has_landed():
            self._reload()
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

    def _after_commit(self, *, folds: bool) -> None:
        state, limits = self.state, self.limits
        if self.standby.is_used:
            self._follow()
        unfolded, size = state.seq - state.folded, state.tail_total
        if folds and self._tail_is_full():
            self._fold_behind()
        long = unfolded > limits.fold_deltas_min or size > limits.fold_bytes_min
        if long or not self._kept:
            self._kept = True
            self._keeper.wake()

    def _follow(self) -> None:
        """Have the standby keep up; what was just committed stays committed."""
        try:
            if self.standby.follow(is_slow=self._sync_s > SLOW_S):
                return
        except MillstreamError as error:
            self._last_failure = str(error)
        self.watch.wake_all()  # what some of them wait for, it had to find out

    def _fold_behind(self) -> None:
        """The tail is as long as it may be: fold now. What was just committed stays committed."""
        try:
            self._write_slice()
        except MillstreamError as error:
            self._keeper_failed(error)

    def _fail(self, group: list[Ticket[Any]], error: BaseException) -> None:
        """Nothing of the group was acknowledged: each caller is told what is known."""
        with self.mutex:
            self.state.failures += 1
            self._stale = self._stale or self._ahead  # refused before anything ran: it is as it was
            self._fall_level()
        known = isinstance(error, MillstreamError) and not isinstance(error, OutcomeUnknown)
        if not known and (self._sent or not isinstance(error, Exception)):
            self._begin_recovery(error)
        for ticket in group:
            if ticket.error is None:
                ticket.error = told(error, sent=self._sent)

    def _keeper_failed(self, error: Exception) -> None:
        known = isinstance(error, MillstreamError)
        self._last_failure = str(error) if known else repr(error)

    # The fold.

    def _tail_is_full(self) -> bool:
        """Whether so much is unfolded that the next commit has to fold."""
        state, limits = self.state, self.limits
        return (
            state.seq - state.folded > limits.tail_deltas_max
            or state.tail_total > limits.tail_bytes_max
            or len(state.dirty) > limits.tail_entities_max
        )

    def _tail_is_long(self) -> bool:
        state, limits = self.state, self.limits
        return (
            state.seq - state.folded > limits.fold_deltas_min
            or state.tail_total > limits.fold_bytes_min
        )

    def tail_is_ours(self) -> bool:
        """Whether it is for this process to fold: it has commits in there, or others do not fold."""
        self.look(lambda state, snapshot: state.folded_through(snapshot.first_seq() - 1))
        folded, before = self.state.folded, self._folded_before
        self._folded_before = folded
        return self._tail_is_long() and (self._own_seq > folded or folded == before)

    def _fold_for(self, most_s: float | None) -> int:
        """Fold what is unfolded now, slice by slice while there is time; how many commits."""
        self._check_usable()
        target, before = self.state.seq - 1, self.state.folded
        until_s = None if most_s is None else self.clock.seconds() + most_s
        while self.state.folded < target and self.fold_slice():
            if until_s is not None and self.clock.seconds() >= until_s:
                break
        return self.state.folded - before

    def fold_slice(self) -> bool:
        """Fold one slice, here or seen to be done elsewhere; False if there was nothing to do.

        Many rows are joined beside running commits.
        """
        with self._folding:
            with self._transactor.turn:
                with self.mutex:
                    found = None if self._stale else Slice(self.state, self.limits)
                if found is None or found.is_light:
                    return self._write_slice()
            found.prepare()
            with self._transactor.turn:
                return self._write_slice(found) or self.state.folded > found.folded

    def _write_slice(self, prepared: Slice | None = None) -> bool:
        """Write a slice and commit it; called in the writer's turn."""
        if self._reason is not None or self.recovery.reason is not None:
            return False
        self._sent = False
        try:
            with self.engine.write() as writer:
                with self.mutex:
                    self._ahead = True
                    advanced = self._advance(writer)
                    draft = Draft(writer, self._folder)
                    through = write_slice(
                        self.state,
                        draft,
                        self.limits,
                        prepared,
                        may_lose="replicated" not in self.engine.abilities,
                    )
                if through:
                    self._sync(writer, draft.finish())
                with self.mutex:
                    if through:
                        self.state.folded_through(through)
                        self._folded_before = self.state.folded
                        self._folds += 1
                    if advanced:
                        self._publish(self.state)
                    self._fall_level()
        except MillstreamError as error:
            self._fail([], error)
            raise
        except BaseException:  # interrupted: what is on disk says how far it had come
            with self.mutex:
                self._stale = True
                self._fall_level()
            raise
        return through > 0
