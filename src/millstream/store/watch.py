"""The watch: which callers wait for something to change, and how they are woken.

Inside a process a commit wakes its waiters at once. For commits of other processes one thread asks
the engine, and only while a caller waits. Between two waits it rests for a moment before it ends: a
consumer that takes one message after the other would start a thread for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from millstream.errors import MillstreamError

FAILED_S = 0.010
"""The pause after a look that failed."""

REST_S = 1.0
"""How long the thread rests without a waiter before it ends."""

Wake = Callable[[], None]
Look = Callable[[threading.Event], object]
"""Waits until other processes may have committed, or the event is set, and takes that over."""

Tell = Callable[[Collection[bytes] | None], None]
"""Is told which entities have changed; None if any may have."""


class Watch:
    """Waiters by the key of the entity that they wait for, or by the two bytes of a type."""

    def __init__(self, look: Look | None) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._waiters: dict[bytes, list[Wake]] = {}
        self.told: tuple[Tell, ...] = ()
        """What is told of every commit."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._rests = False
        self._waits_again = threading.Event()

    def add(self, key: bytes, wake: Wake) -> None:
        """Call `wake`, from any thread, whenever the entity may have changed, until `remove`."""
        with self._lock:
            self._waiters.setdefault(key, []).append(wake)
            if self._rests:
                self._rests = False
                self._waits_again.set()
            if self._look is not None and self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._watch, name="millstream-watch", daemon=True
                )
                self._thread.start()

    def remove(self, key: bytes, wake: Wake) -> None:
        """Stop waking."""
        with self._lock:
            waiting = self._waiters.get(key, [])
            if wake in waiting:
                waiting.remove(wake)
            if not waiting:
                self._waiters.pop(key, None)

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

    def wakes(self) -> list[Wake]:
        """What is called when something changes: one for each waiter and entity."""
        with self._lock:
            return [wake for waiting in self._waiters.values() for wake in waiting]

    def notify(self, keys: Collection[bytes]) -> None:
        """Wake all that wait for one of these."""
        for tell in self.told:
            tell(keys)
        self._wake(keys)

    def _wake(self, keys: Collection[bytes]) -> None:
        if not self._waiters:
            return
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
            self._waits_again.set()
        self.wake_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            if not self._has_waiters():
                return
            assert self._look is not None
            try:
                self._look(self._stop)
            except MillstreamError:
                # The store is closed, poisoned or damaged: the waiters find out by themselves.
                self.wake_all()
                self._stop.wait(FAILED_S)

    def _has_waiters(self) -> bool:
        """Whether there is a waiter, now or soon; else the thread is given up."""
        with self._lock:
            if self._waiters:
                return True
            self._rests = True
            self._waits_again.clear()
        self._waits_again.wait(REST_S)
        with self._lock:
            self._rests = False
            if not self._waiters:
                self._thread = None
            return bool(self._waiters)
