"""The read copy: a second state that answers readers while a commit is in flight.

The state of the store is ahead of the disk from the first operation of a group until its commit is
durable. Meanwhile readers ask the read copy: a state that applies durable deltas only, as another process
would. It is made at the first use, and dropped after `IDLE_S` without use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from millstream.clock import Clock
from millstream.engine.protocol import Engine, Snapshot
from millstream.limits import Limits
from millstream.store.state.state import State

T = TypeVar("T")

IDLE_S = 10.0
"""The read copy is dropped after this time without a reader."""


class ReadCopy:
    """A state behind its own lock; `publish` is called after every advance, under this lock."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        limits: Limits,
        *,
        make_state: Callable[[], State],
        publish: Callable[[State], None],
    ) -> None:
        self.lock = threading.Lock()
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._make_state = make_state
        self._publish = publish
        self._state: State | None = None
        self.is_used = False
        """Whether the read copy has to follow commits: from its first use until it is dropped."""
        self._used_s = 0.0

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Answer a question from the durable state, without waiting for a commit."""
        with self.lock:
            self.is_used, self._used_s = True, self._clock.seconds()
            state, self._state = self._state or self._make_state(), None
            with self._engine.read() as snapshot:
                self._advance(state, snapshot)
                try:
                    return question(state, snapshot)
                finally:
                    state.evict(self._limits.entities_cached_max, self._limits.entities_weight_max)
                    self._state = state

    def follow(self, *, is_slow: bool) -> bool:
        """Apply a durable commit; return False if the read copy was dropped.

        Readers may wait for values that followers derive, so a state with followers applies every
        commit. With slow commits it applies every commit as well, so that the next reader is quick.
        """
        with self.lock:
            state, self._state = self._state, None
            if state is None or self._clock.seconds() - self._used_s > IDLE_S:
                self.is_used = False
                return state is not None and not state.has_followers
            if is_slow or state.has_followers:
                with self._engine.read() as snapshot:
                    self._advance(state, snapshot)
            self._state = state
            return True

    def _advance(self, state: State, snapshot: Snapshot) -> None:
        """Apply durable deltas; the caller drops a state that fails half-way."""
        if state.seq == 0:
            state.load(snapshot)
        elif not state.advance(snapshot):
            return
        self._publish(state)
