"""The reader of a store: reads of the durable state, and updates from the disk.

Readers see durable commits, and wait for no commit in flight.

    call     answered from                                                          lock
    seen     the views: published, frozen                                           none
    look     the state without a commit in flight (see `State`), and a snapshot     the mutex

The state changes only under `mutex`. A commit that waits for the disk does not hold `mutex`. A reader may
find this commit in its snapshot before the committer has returned from the disk. Then the reader merges
the commit, because rows and entities of an answer must be of the same commit. Reads work while writes are
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.engine.protocol import Engine, Snapshot
from millstream.format import keys
from millstream.limits import Limits
from millstream.store.state.entity import Kinds
from millstream.store.state.state import Joiner, Pending, State
from millstream.store.state.view import Rows, View
from millstream.store.watch import Watch

T = TypeVar("T")


class StateReader:
    """An engine and the state over it, for readers; a committer changes the state.

    `check_usable` raises if the handle of the store was closed or poisoned.
    """

    def __init__(
        self,
        engine: Engine,
        kinds: Kinds,
        *,
        limits: Limits,
        clock: Clock,
        parts: tuple[object, ...],
        join_rows: Joiner,
        watch: Watch,
        check_usable: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.clock = clock
        self.watch = watch
        self._check_usable = check_usable
        self.mutex = threading.Lock()
        """Guards the state; never held during a sync."""
        self.state = State(
            kinds, clock, parts={type(part): part for part in parts}, join_rows=join_rows
        )
        self.views = self.state.views
        self.is_stale = True
        """Whether the state must be loaded from the disk before its next use."""

    def refresh(self) -> bool:
        """Apply the commits of other processes; return True if there were new commits."""
        self._check_usable()
        before = self.views.seq
        if not self.is_stale and (not self.engine.shared or self.engine.last_seq() == before):
            return False
        self.look(lambda state, snapshot: None)
        return self.views.seq > before

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Answer a question from the state with every durable commit, without waiting for a commit.

        The question runs under a lock: it must be quick, and must not change the state.
        """
        self._check_usable()
        state = self.state
        with self.mutex, self.engine.read() as snapshot:
            if self.advance(snapshot):
                self.publish()
            if state.pending is not None:
                self._catch_up()
            answer = question(state, snapshot)
            state.evict(self.limits.entities_cached_max, self.limits.entities_weight_max)
            return answer

    def _catch_up(self) -> None:
        """Update the durable versions of entities, for a read beside a commit in flight."""
        self.is_stale = True  # an interrupt may leave some versions behind
        self.state.published.catch_up()
        self.is_stale = False

    def rows(self, snapshot: Snapshot) -> Rows:
        """Return a view of rows without a lock; a row that a fold is moving may be missing."""
        return Rows(self.state.overlay, snapshot)

    def view(self, question: Callable[[View], T]) -> T:
        """Answer a question about rows and entities, as `look` does."""
        return self.look(lambda state, snapshot: question(View(state, snapshot)))

    def seen(self, key: bytes) -> Any:
        """Return the view of an entity, as of the last `refresh` or commit."""
        view = self.views.get(key)
        return self._show(key) if view is None else view

    def _show(self, key: bytes) -> Any:
        return self.look(lambda state, snap: state.show(key, state.entity(key, snap)))

    def reload(self) -> None:
        """Load new deltas from the disk, and publish the state."""
        with self.mutex, self.engine.read() as snapshot:
            self.advance(snapshot)
            self.publish()

    def publish(self) -> None:
        """Publish the views of the durable state, and wake waiters; the caller holds the mutex."""
        state = self.state
        changed = state.publish()
        if state.reloaded:
            state.reloaded = False
            self.watch.wake_all()
        elif self.watch.waiters or self.watch.followers:
            self.watch.notify(changed)

    def drop(self) -> None:
        """Drop the commit in flight, which has failed; the caller holds the mutex."""
        was_stale, self.is_stale = self.is_stale, True
        self.state.drop()
        self.is_stale = was_stale

    def advance_to(self, seq: int) -> None:
        """Read a durable commit from the disk, unless a reader has done this; the caller holds the mutex."""
        if self.state.seq < seq:
            with self.engine.read() as snapshot:
                self.advance(snapshot)

    def advance(self, snapshot: Snapshot) -> bool:
        """Apply the deltas of a snapshot; after a failure the next call loads the state again."""
        state, stale = self.state, self.is_stale
        if not stale and snapshot.last_seq() == state.seq:
            return False
        self.is_stale = True
        if stale:
            state.load(snapshot)
        else:
            if state.pending is not None:
                self._merge_or_drop(state.pending, snapshot)
            state.advance(snapshot)
        self.is_stale = False
        return True

    def _merge_or_drop(self, pending: Pending, snapshot: Snapshot) -> None:
        """Merge a commit in flight that a snapshot shows; drop a commit that lost against another process.

        To drop and read every commit would be right as well, but busy readers meet most commits here.
        """
        if snapshot.get(keys.delta(pending.delta.seq)) == pending.encoded:
            self.state.land(pending)
        else:
            self.state.drop()
