"""The reading half of a store: what readers see, and how it is kept up with the disk.

The state is changed only under the transactor's mutex; what readers see of it, without a lock, is as
of the last commit. Reads go on while writes are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.errors import CannotOpen, MillstreamError
from millstream.limits import Limits
from millstream.store.engine import Engine, Snapshot
from millstream.store.entity import Kinds
from millstream.store.rows import Rows, View
from millstream.store.state import Pin, Readers, State
from millstream.store.transactor import Transactor, fresh
from millstream.store.watch import Watch

T = TypeVar("T")


class Readable:
    """An engine, and the state over it; the store adds how it changes."""

    _pid: int
    _transactor: Transactor
    watch: Watch

    def __init__(
        self,
        engine: Engine,
        kinds: Kinds,
        *,
        limits: Limits,
        clock: Clock,
        pins: tuple[Pin, ...],
        readers: tuple[Readers, ...],
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.clock = clock
        self._kinds = kinds
        self._pins, self._readers = pins, readers
        self.state = State(kinds, clock, pins, readers)
        self._stale = True
        self._seen_seq = -1
        self._reason: MillstreamError | None = None
        """Why the handle has ended."""

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

    def rows(self, snapshot: Snapshot) -> Rows:
        """What a reader sees that holds no lock: of a row that moves meanwhile, nothing."""
        return Rows(self.state.overlay, snapshot)

    def view(self, question: Callable[[View], T]) -> T:
        """The same for questions to rows and entities."""
        return self.look(lambda state, snapshot: question(View(state, snapshot)))

    def seen(self, key: bytes) -> Any:
        """What readers see of an entity, as of the last `refresh` or commit."""
        found = self.state.visible.get(key)
        if found is None:
            found = self.look(lambda state, snap: state.show(key, state.entity(key, snap)))
        return found

    def _publish(self) -> None:
        changed = self.state.publish()
        self._seen_seq = self.state.seq
        if self.state.reloaded:
            self.state.reloaded = False
            self.watch.wake_all()
        else:
            self.watch.notify(changed)

    def _advance(self, snapshot: Snapshot) -> bool:
        """Bring the state up to a snapshot; if that fails half-way, the next one starts over."""
        stale, self._stale = self._stale, True
        if stale:
            self.state.load(snapshot)
        advanced = stale or self.state.advance(snapshot)
        self._stale = False
        return advanced

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
