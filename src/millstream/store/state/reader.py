"""The reader of a store: reads of the durable state, and updates from the disk.

Readers see durable commits, and wait for no commit in flight.

    call                       answered from                       lock
    seen                       the views: published, frozen        none
    look, no commit in flight  the store's state and a snapshot    the mutex, for the question alone
    look, a commit in flight   the read copy and a snapshot        the lock of the read copy

The state changes only under `mutex`, and a commit that waits for the disk does not hold `mutex`. The
state is `ahead` of the disk from the first operation of a group until its commit is durable. A reader
of a state that is ahead waits for `PATIENCE_S`, since most commits are shorter, and then asks the read
copy. The next commit lets waiting readers go first. Reads work while writes are refused.
"""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock
from collections.abc import Callable
from time import sleep
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.engine.protocol import Engine, Snapshot
from millstream.limits import Limits
from millstream.store.state.entity import Kinds
from millstream.store.state.published import Views
from millstream.store.state.read_copy import ReadCopy
from millstream.store.state.state import Joiner, State
from millstream.store.state.view import Rows, View
from millstream.store.watch import Watch

T = TypeVar("T")

PATIENCE_S = 0.002
"""A reader waits for a commit in flight up to this time, and then asks the read copy."""

TRIES = 2
"""The number of waits of a reader: after the first, the next commit may be in flight."""

LET_READ_S = 0.00005
LET_READ_STEPS = 20
"""A commit waits up to `LET_READ_STEPS` of these for readers that waited for the last commit."""


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
        self._kinds = kinds
        self._parts = {type(part): part for part in parts}
        self._join_rows = join_rows
        self._check_usable = check_usable
        self.mutex = threading.Lock()
        """Guards the state; never held during a sync."""
        self.views = Views()
        self.state = self._make_state()
        self.read_copy = ReadCopy(
            engine, clock, limits, make_state=self._make_state, publish=self.publish
        )
        self.is_stale = True
        """Whether the state must be loaded from the disk before its next use."""
        self.is_ahead = False
        """Whether the state has changes that are not durable yet."""
        self.waiting: list[LockType] = []
        """The locks of readers that wait until the state is durable."""
        self.promised = 0
        """The number of woken readers that have not read yet."""

    def _make_state(self) -> State:
        return State(
            self._kinds,
            self.clock,
            parts=self._parts,
            join_rows=self._join_rows,
            views=self.views,
        )

    def refresh(self) -> bool:
        """Apply the commits of other processes; return True if there were new commits."""
        self._check_usable()
        before = self.views.seq
        if not self.is_stale and (not self.engine.shared or self.engine.last_seq() == before):
            return False
        self.look(lambda state, snapshot: None)
        return self.views.seq > before

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Answer a question from a state with every durable commit, without waiting for a commit.

        The question runs under a lock: it must be quick, and must not change the state.
        """
        self._check_usable()
        for _ in range(TRIES):
            with self.mutex:
                if not self.is_ahead:
                    if self.promised:
                        self.promised -= 1
                    return self._ask(question)
                level = allocate_lock()
                level.acquire()
                self.waiting.append(level)
            if not level.acquire(timeout=PATIENCE_S):
                break
        return self.read_copy.look(question)

    def _ask(self, question: Callable[[State, Snapshot], T]) -> T:
        with self.engine.read() as snapshot:
            if self.advance(snapshot):
                self.publish(self.state)
            answer = question(self.state, snapshot)
            self.state.evict(self.limits.entities_cached_max, self.limits.entities_weight_max)
            return answer

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
            self.publish(self.state)
            self.fall_level()

    def fall_level(self) -> None:
        """Wake waiting readers, because the state is durable or stale; the caller holds the mutex."""
        self.is_ahead = False
        if self.waiting:
            patient, self.waiting = self.waiting, []
            self.promised = len(patient)
            for level in patient:
                level.release()

    def let_read(self) -> None:
        """Wait for readers that the last commit made wait, before the state is ahead again.

        A writer that commits again at once would be ahead before the readers are awake. The readers
        would then ask the read copy, and every commit would be applied twice.
        """
        for _ in range(LET_READ_STEPS):
            if not self.promised:
                return
            sleep(LET_READ_S)
        self.promised = 0

    def publish(self, state: State) -> None:
        """Publish the views of a durable state, and wake waiters; the caller holds the state's lock."""
        changed = state.publish()
        if state.reloaded:
            state.reloaded = False
            self.watch.wake_all()
        else:
            self.watch.notify(changed)

    def advance(self, snapshot: Snapshot) -> bool:
        """Apply the deltas of a snapshot; after a failure the next call loads the state again."""
        state, stale = self.state, self.is_stale
        if not stale and snapshot.last_seq() == state.seq:
            return False
        self.is_stale = True
        if stale:
            state.load(snapshot)
        else:
            state.advance(snapshot)
        self.is_stale = False
        return True
