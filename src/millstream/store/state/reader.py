"""The reading half of a store: what readers see, and how it is kept up with the disk.

Readers see what is durable, and wait for no commit.

    what is asked          answered from                       lock
    seen                   the views: published, frozen        none
    look, none in flight   the store's state and a snapshot    the state's, for the question alone
    look, one in flight    the standby and a snapshot          the standby's

The state is changed only under `mutex`, and `mutex` is never held while a commit waits for the
disk. From a group's first operation until its commit is durable the state is `ahead` of the disk: a
reader that finds it so waits for `PATIENCE_S`, since most commits are over by then, and then asks the
standby. The next commit lets readers that have waited look first. Reads go on while writes are
refused.
"""

from __future__ import annotations

import os
import threading
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import sleep
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.engine.protocol import Engine, Snapshot
from millstream.errors import CannotOpen, MillstreamError
from millstream.limits import Limits
from millstream.store.commit.transactor import Transactor, fresh
from millstream.store.state.entity import Kinds
from millstream.store.state.published import Views
from millstream.store.state.read_copy import Standby
from millstream.store.state.state import Joiner, State
from millstream.store.state.view import Rows, View
from millstream.store.watch import Watch

T = TypeVar("T")

PATIENCE_S = 0.002
"""How long a reader waits for a commit in flight before it asks the standby."""

TRIES = 2
"""How often it does so: the next commit may be in flight when it comes."""

LET_READ_S = 0.00005
LET_READ_STEPS = 20
"""How long a commit waits for readers that the last one has made wait: each needs microseconds."""


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
        parts: tuple[object, ...],
        join_rows: Joiner,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.clock = clock
        self._kinds = kinds
        self._parts = {type(part): part for part in parts}
        self._join_rows = join_rows
        self._reason: MillstreamError | None = None
        """Why the handle has ended."""
        self._start_reading()

    def _start_reading(self) -> None:
        """Know nothing yet: the next look reads what is on disk."""
        self.mutex = threading.Lock()
        """Guards the state; held for a moment only, never while the disk is waited for."""
        self.views = Views()
        self.state = self._make_state()
        self.standby = Standby(
            self.engine,
            self.clock,
            self.limits,
            make_state=self._make_state,
            publish=self._publish,
        )
        self._stale = True
        self._ahead = False
        """Whether the state has changes that are not durable."""
        self._patient: list[LockType] = []
        """The locks of readers that wait until the state is not ahead any more."""
        self._promised = 0
        """How many of them were woken, and have not looked yet."""

    def _make_state(self) -> State:
        return State(
            self._kinds,
            self.clock,
            parts=self._parts,
            join_rows=self._join_rows,
            views=self.views,
        )

    @property
    def seq(self) -> int:
        """The newest commit that readers see."""
        return self.views.seq

    @property
    def is_committing(self) -> bool:
        """Whether an operation that is run now has to wait for a commit, or could never be run."""
        return self.engine.read_only or self._transactor.turn.locked()

    def refresh(self) -> bool:
        """See what other processes have committed; True if there was anything."""
        self._check_usable()
        before = self.views.seq
        if not self._stale and (not self.engine.shared or self.engine.last_seq() == before):
            return False
        self.look(lambda state, snapshot: None)
        return self.views.seq > before

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Ask a state something, with every durable commit in it; waits for no commit in flight.

        The question is asked under a lock: it must be quick, and must not change the state.
        """
        self._check_usable()
        for _ in range(TRIES):
            with self.mutex:
                if not self._ahead:
                    if self._promised:
                        self._promised -= 1
                    return self._ask(question)
                level = allocate_lock()
                level.acquire()
                self._patient.append(level)
            if not level.acquire(timeout=PATIENCE_S):
                break
        return self.standby.look(question)

    def _ask(self, question: Callable[[State, Snapshot], T]) -> T:
        with self.engine.read() as snapshot:
            if self._advance(snapshot):
                self._publish(self.state)
            answer = question(self.state, snapshot)
            self.state.evict(self.limits.entities_cached_max, self.limits.entities_weight_max)
            return answer

    def rows(self, snapshot: Snapshot) -> Rows:
        """What a reader sees that holds no lock: of a row that moves meanwhile, nothing."""
        return Rows(self.state.overlay, snapshot)

    def view(self, question: Callable[[View], T]) -> T:
        """The same for questions to rows and entities."""
        return self.look(lambda state, snapshot: question(View(state, snapshot)))

    def hold(self) -> AbstractContextManager[object]:
        """A block in which no commit and no fold begins; what is asked for waits."""
        return self._transactor.turn

    def seen(self, key: bytes) -> Any:
        """What readers see of an entity, as of the last `refresh` or commit."""
        found = self.views.get(key)
        return self._show(key) if found is None else found

    def _show(self, key: bytes) -> Any:
        return self.look(lambda state, snap: state.show(key, state.entity(key, snap)))

    def _reload(self) -> None:
        """Bring the state up to what is on disk, and let readers see it."""
        with self.mutex, self.engine.read() as snapshot:
            self._advance(snapshot)
            self._publish(self.state)
            self._fall_level()

    def _fall_level(self) -> None:
        """The state is what is on disk, or stale; called under the mutex."""
        self._ahead = False
        if self._patient:
            patient, self._patient = self._patient, []
            self._promised = len(patient)
            for level in patient:
                level.release()

    def _let_read(self) -> None:
        """Before the state runs ahead again, let readers look that the last commit made wait.

        A writer that commits again at once would be ahead before any of them is awake: they would
        have to ask the standby, and each commit would be applied twice.
        """
        for _ in range(LET_READ_STEPS):
            if not self._promised:
                return
            sleep(LET_READ_S)
        self._promised = 0

    def _publish(self, state: State) -> None:
        """Let readers see what a state knows to be durable; called under the state's lock."""
        changed = state.publish()
        if state.reloaded:
            state.reloaded = False
            self.watch.wake_all()
        else:
            self.watch.notify(changed)

    def _advance(self, snapshot: Snapshot) -> bool:
        """Bring the state up to a snapshot; if that fails half-way, the next one starts over."""
        state, stale = self.state, self._stale
        if not stale and snapshot.last_seq() == state.seq:
            return False
        self._stale = True
        if stale:
            state.load(snapshot)
        else:
            state.advance(snapshot)
        self._stale = False
        return True

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
