"""The folding half of a store: when it folds, and the commit of a slice (see `fold`).

A slice is a commit like any other: it is written in the writer's turn, and readers wait for it as
little as for any.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from millstream.errors import MillstreamError
from millstream.store.commit import Commit
from millstream.store.draft import Draft
from millstream.store.engine import Writer
from millstream.store.fold import Slice, write_slice
from millstream.store.readable import Readable
from millstream.store.recovery import Recovery
from millstream.store.ticket import Ticket

Observer = Callable[[int, float, float], None]
"""Told of each group that was committed: its operations, its time and that of its sync, in seconds."""


class Folding(Readable):
    """Folds what was committed; the store adds operations."""

    _folding: threading.Lock
    recovery: Recovery

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._folder = self.engine.folder()
        """Where a large commit is spooled."""
        self._folds = 0
        self._own_seq, self._folded_before = 0, -1
        self._sent = False
        """Whether something of the commit that is made may have reached the disk."""
        self.on_commit: Observer | None = None
        """Called by the thread that commits, before its callers are answered: it must be quick."""
        self._sync_s = 0.0
        """How long the last commit waited for the disk, of those that were timed."""

    @abstractmethod
    def _fail(self, group: list[Ticket[Any]], error: BaseException) -> None:
        """A commit has failed."""

    def _sync(self, writer: Writer, commit: Commit) -> None:
        """Hand a commit to the engine, and wait until it is durable."""
        self._sent = True
        if self.on_commit is None and not self.standby.is_used:
            writer.commit(commit)
            return
        began_s = self.clock.seconds()
        writer.commit(commit)
        self._sync_s = self.clock.seconds() - began_s

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
                    through = write_slice(self.state, draft, self.limits, prepared)
                if through:
                    self._sync(writer, draft.finish())
                with self.mutex:
                    self._folded(through)
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

    def _folded(self, through: int) -> None:
        if through:
            self.state.folded_through(through)
            self._folded_before = self.state.folded
            self._folds += 1
