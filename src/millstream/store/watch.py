"""The watch: the callers that wait for a change of an entity, and their wake-up.

Inside a process a commit wakes its waiters at once. For commits of other processes a thread polls the
engine while a caller waits. After the last waiter the thread stays for about a second and checks for
new waiters by itself. A thread per wait, or a wake-up per wait, would take the interpreter from a
consumer that claims message after message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from millstream.errors import MillstreamError

FAILED_S = 0.010
"""The pause after a failed poll."""

REST_S = 1.0
"""The thread ends after about this time without a waiter."""

REST_STEP_S = 0.005
"""The interval at which a resting thread checks for a new waiter."""

Wake = Callable[[], None]
Look = Callable[[threading.Event], object]
"""Waits until other processes have committed or the event is set, and applies the commits."""

Tell = Callable[[Collection[bytes] | None], None]
"""Called with the keys of changed entities; with None if every entity may have changed."""


class Watch:
    """Waiters by the key of an entity, or by the first two bytes of the keys of a type."""

    def __init__(self, look: Look | None, *, on_wait: Wake = lambda: None) -> None:
        """Take a function `on_wait` that is called for each new waiter and must be quick."""
        self._look = look
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self.waiters: dict[bytes, list[Wake]] = {}
        """By key: the wake functions of the waiters; only the watch changes them."""
        self.followers: tuple[Tell, ...] = ()
        """The functions that are called at every commit."""
        self._observers: tuple[Wake, ...] = ()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_wanted = False
        """Whether a waiter has come since the last check of the thread."""

    def add(self, key: bytes, wake: Wake) -> None:
        """Call `wake`, from any thread, whenever the entity may have changed, until `remove`."""
        with self._lock:
            self.waiters.setdefault(key, []).append(wake)
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
            waiting = self.waiters.get(key, [])
            if wake in waiting:
                waiting.remove(wake)
            if not waiting:
                self.waiters.pop(key, None)
        self.stir()

    def follow(self, tell: Tell) -> None:
        """Call `tell`, from any thread, with the keys that each commit changed, until `unfollow`.

        `tell` must be quick and must not use the store. It starts no polling: commits of other
        processes are reported once a caller reads the store.
        """
        with self._lock:
            self.followers = (*self.followers, tell)

    def unfollow(self, tell: Tell) -> None:
        """Stop calling `tell`."""
        with self._lock:
            self.followers = tuple(follower for follower in self.followers if follower != tell)

    def observe(self, call: Wake) -> None:
        """Call a function, from any thread, whenever the set of waiters may have changed.

        The function must be quick, and must use neither the store nor the watch. `testing.Probe` uses
        it.
        """
        with self._lock:
            self._observers = (*self._observers, call)

    def unobserve(self, call: Wake) -> None:
        """Stop calling a function of `observe`."""
        with self._lock:
            self._observers = tuple(observer for observer in self._observers if observer != call)

    def stir(self) -> None:
        """Call the functions of `observe`, because the set of waiters may have changed."""
        for call in self._observers:
            call()

    def wakes(self) -> list[Wake]:
        """Return the wake functions, one per waiter and entity."""
        with self._lock:
            return [wake for waiting in self.waiters.values() for wake in waiting]

    def notify(self, keys: Collection[bytes]) -> None:
        """Wake the waiters of the given keys."""
        for tell in self.followers:
            tell(keys)
        if self.waiters:
            self._wake(keys)

    def _wake(self, keys: Collection[bytes]) -> None:
        with self._lock:
            wakes = [
                wake
                for key in keys
                for name in (key, key[:2])
                for wake in self.waiters.get(name, ())
            ]
        for wake in wakes:
            wake()

    def wake_all(self) -> None:
        """Wake the waiters, so that each waiter checks the store."""
        for tell in self.followers:
            tell(None)
        with self._lock:
            everybody = list(self.waiters)
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
        """Rest until there is a waiter; return False to end the thread, after `REST_S` without a
        waiter."""
        rested = 0
        while not self.waiters:
            if self._stop.wait(REST_STEP_S):
                return False
            with self._lock:
                rested = 0 if self._is_wanted else rested + 1
                self._is_wanted = False
                if rested * REST_STEP_S >= REST_S and not self.waiters:
                    self._thread = None
                    return False
        return not self._stop.is_set()
