"""The watch: which callers wait for something to change, and how they are woken.

Inside a process a commit wakes its waiters at once. For commits of other processes one thread asks
the engine, and only while a caller waits. Between two waits it rests for a moment before it ends, and
is not woken for the second: a consumer that takes one message after the other would start a thread
for each, or have it take the interpreter from the consumer itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from millstream.errors import MillstreamError

FAILED_S = 0.010
"""The pause after a look that failed."""

REST_S = 1.0
"""How long the thread rests without a waiter before it ends, about."""

REST_STEP_S = 0.005
"""How soon it notices a new waiter then."""

Wake = Callable[[], None]
Look = Callable[[threading.Event], object]
"""Waits until other processes may have committed, or the event is set, and takes that over."""

Tell = Callable[[Collection[bytes] | None], None]
"""Is told which entities have changed; None if any may have."""


class Watch:
    """Waiters by the key of the entity that they wait for, or by the two bytes of a type."""

    def __init__(self, look: Look | None, *, on_wait: Wake = lambda: None) -> None:
        """`on_wait` is called whenever a waiter comes; it must be quick."""
        self._look = look
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._waiters: dict[bytes, list[Wake]] = {}
        self.told: tuple[Tell, ...] = ()
        """What is told of every commit."""
        self._observers: tuple[Wake, ...] = ()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_wanted = False
        """Whether there was a waiter since the thread last asked."""

    def add(self, key: bytes, wake: Wake) -> None:
        """Call `wake`, from any thread, whenever the entity may have changed, until `remove`."""
        with self._lock:
            self._waiters.setdefault(key, []).append(wake)
            self._is_wanted = True
            if self._look is not None and self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._watch, name="millstream-watch", daemon=True
                )
                self._thread.start()
        self._on_wait()
        self.stir()

    def remove(self, key: bytes, wake: Wake) -> None:
        """Stop waking."""
        with self._lock:
            waiting = self._waiters.get(key, [])
            if wake in waiting:
                waiting.remove(wake)
            if not waiting:
                self._waiters.pop(key, None)
        self.stir()

    def follow(self, tell: Tell) -> None:
        """Call `tell`, from any thread, with what each commit changed, until `unfollow`.

        It must be quick, and must not ask the store. Nothing is looked for on its behalf: of other
        processes' commits it is told once a caller looks.
        """
        with self._lock:
            self.told = (*self.told, tell)

    def unfollow(self, tell: Tell) -> None:
        """Stop telling."""
        with self._lock:
            self.told = tuple(one for one in self.told if one != tell)

    def observe(self, call: Wake) -> None:
        """Call something, from any thread, whenever other callers may wait than before; it must be quick.

        It must ask neither the store nor the watch. For tests: `testing.Probe` waits by it.
        """
        with self._lock:
            self._observers = (*self._observers, call)

    def unobserve(self, call: Wake) -> None:
        """Stop calling it."""
        with self._lock:
            self._observers = tuple(one for one in self._observers if one != call)

    def stir(self) -> None:
        """Say that other callers may wait than before; a caller that shares a wake says so itself."""
        for call in self._observers:
            call()

    def wakes(self) -> list[Wake]:
        """What is called when something changes: one for each waiter and entity."""
        with self._lock:
            return [wake for waiting in self._waiters.values() for wake in waiting]

    def notify(self, keys: Collection[bytes]) -> None:
        """Wake all that wait for one of these."""
        for tell in self.told:
            tell(keys)
        if self._waiters:
            self._wake(keys)

    def _wake(self, keys: Collection[bytes]) -> None:
        with self._lock:
            found = [
                wake
                for key in keys
                for name in (key, key[:2])
                for wake in self._waiters.get(name, ())
            ]
        for wake in found:
            wake()

    def wake_all(self) -> None:
        """Wake all waiters: they will find out why."""
        for tell in self.told:
            tell(None)
        with self._lock:
            everybody = list(self._waiters)
        self._wake(everybody)

    def close(self) -> None:
        """Wake all waiters, for good."""
        self._stop.set()
        with self._lock:
            thread = self._thread
        self.wake_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _watch(self) -> None:
        assert self._look is not None
        while self._waits_for_waiters():
            try:
                self._look(self._stop)
            except MillstreamError:
                # The store is closed, poisoned or damaged: the waiters find out by themselves.
                self.wake_all()
                self._stop.wait(FAILED_S)

    def _waits_for_waiters(self) -> bool:
        """Rest until there is a waiter; False if there was none for long: the thread is given up."""
        rested = 0
        while not self._waiters:
            if self._stop.wait(REST_STEP_S):
                return False
            with self._lock:
                rested = 0 if self._is_wanted else rested + 1
                self._is_wanted = False
                if rested * REST_STEP_S >= REST_S and not self._waiters:
                    self._thread = None
                    return False
        return not self._stop.is_set()
