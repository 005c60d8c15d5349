"""The standby: a second state that answers readers while a commit is in flight.

The store's own state runs ahead of the disk from a group's first operation until its commit is
durable. A reader that comes meanwhile asks the standby instead: a state that is moved by durable
commits alone, in the way in which another process would follow them, by their deltas. It is made
when a reader first needs it, and let go of when no reader has needed it for a while.
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
"""How long the standby is kept after a reader has needed it last."""


class Standby:
    """A state behind a lock of its own; `publish` is told of every advance, under that lock."""

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
        """Whether it has to follow commits: from its first look on, until it is let go of."""
        self._used_s = 0.0

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """Ask something of what is durable now; waits for no commit."""
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
        """Keep up with a commit that has become durable; False if the standby was let go of.

        It has to keep up if readers wait for what it derives (its `followers`). If commits are
        slow, it had better: the next reader finds little left to apply.
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
        """Apply what has become durable; a state that fails half-way is made anew by the next."""
        if state.seq == 0:
            state.load(snapshot)
        elif not state.advance(snapshot):
            return
        self._publish(state)
