"""Claims that wait: the lines of all queues, with their lock and their watches in the store.

The rules of a line are in `line`. Threads wait in `thread_waiting`, coroutines in `aio.standing`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from millstream.queue.model.line import Duty, Line, W
from millstream.queue.service import consuming
from millstream.store.store import Store
from millstream.store.watch import Wake


class Lines(Generic[W]):
    """The lines of a store's queues; any thread may call.

    `tell` is called outside of the lock, on whichever thread something happened, also on one that
    commits: it must be quick.
    """

    def __init__(self, store: Store, tell: Callable[[Sequence[tuple[W, Duty]]], None]) -> None:
        self._store = store
        self._tell = tell
        self._lock = threading.Lock()
        self._lines: dict[str, Line[W]] = {}
        self._watched: dict[W, tuple[list[bytes], Wake]] = {}
        self._bringing: dict[bytes, dict[W, str]] = {}
        """Names of logs → waiters that watch for what is appended to them, and their queues."""

    def join(self, queue: str, waiter: W, wanted: int) -> None:
        """Stand at the end of a queue's line, for at least one message."""
        self._do(queue, lambda line: line.join(waiter, wanted))

    def change(self, queue: str) -> None:
        """There may be something to claim."""
        self._do(queue, lambda line: line.change())

    def served(self, queue: str, waiter: W, left: int = 0) -> None:
        """A waiter got messages, or an error, and goes; so many messages were left behind."""
        self._do(queue, lambda line: line.served(waiter, left))

    def in_vain(self, queue: str, waiter: W) -> bool:
        """A waiter has looked and got nothing; answers whether it waits on."""
        return self._do(queue, lambda line: line.in_vain(waiter), waiter)

    def leave(self, queue: str, waiter: W) -> bool:
        """Wait no longer; answers whether that is so at once, as it is unless the waiter looks."""

        def leave(line: Line[W]) -> list[tuple[W, Duty]]:
            self._stop_watching(waiter)
            return line.leave(waiter)

        return not self._do(queue, leave, waiter)

    def watch(self, queue: str, waiter: W) -> float | None:
        """Watch the queue for its line; None if that is not the waiter's duty any more.

        Answers in how many seconds time alone may bring something: 0 if there is something now.
        """
        with self._lock:
            if not self._watches(queue, waiter):
                return None  # many that leave at once cost no look each
        watched = consuming.watched_before(self._store, queue)
        while self._begin_watch(queue, waiter, watched):
            # What came before the watch began woke nobody: look once more.
            before, (watched, change_s) = watched, consuming.glance(self._store, queue)
            if watched == before:
                return change_s
        return None

    def _begin_watch(self, queue: str, waiter: W, watched: consuming.WatchedKeys) -> bool:
        """Have a waiter told of changes; False if that is not its duty any more."""
        wake = partial(self.change, queue)
        with self._lock:
            self._stop_watching(waiter)
            if not self._watches(queue, waiter):
                return False
            for key in watched.keys:
                self._store.watch.add(key, wake)
            for key in watched.bringing:
                self._bringing.setdefault(key, {})[waiter] = queue
            self._watched[waiter] = watched.keys, wake
        return True

    @property
    def expects_any(self) -> bool:
        """Whether `expecting` could find any."""
        return bool(self._bringing)

    def expecting(self, key: bytes) -> list[W]:
        """Waiters for what the next commit appends to the log of this name: they look from now on.

        Nobody tells them; who calls has a claim made for each, and reports `served` or lets it take.
        """
        found: list[W] = []
        with self._lock:
            for queue in [*self._bringing.get(key, {}).values()]:
                looking = [one for one, _ in self._lines[queue].change()]
                for one in looking:
                    self._stop_watching(one)
                found += looking
        return found

    def count(self, queue: str) -> int:
        """How many wait for a queue."""
        with self._lock:
            return len(self._lines.get(queue, ()))

    def looks(self, queue: str, waiter: W) -> bool:
        """Whether a waiter looks, or another caller does so for it."""
        with self._lock:
            line = self._lines.get(queue)
            return line is not None and line.looks(waiter)

    def is_watching(self, waiter: W) -> bool:
        """Whether the waiter has begun to watch, and not ended it."""
        return waiter in self._watched

    def stop_watching(self, waiter: W) -> None:
        """End the watch that a waiter has begun, if it has."""
        with self._lock:
            self._stop_watching(waiter)

    def _watches(self, queue: str, waiter: W) -> bool:
        line = self._lines.get(queue)
        return line is not None and line.watches(waiter)

    def _stop_watching(self, waiter: W) -> None:
        found = self._watched.pop(waiter, None)
        if found is not None:
            for key in found[0]:
                self._store.watch.remove(key, found[1])
                watchers = self._bringing.get(key)
                if watchers is not None and watchers.pop(waiter, "") and not watchers:
                    del self._bringing[key]

    def _do(
        self, queue: str, act: Callable[[Line[W]], list[tuple[W, Duty]]], waiter: W | None = None
    ) -> bool:
        """Have something happen to a queue's line, and tell what follows.

        Answers whether a waiter is in line afterwards.
        """
        with self._lock:
            line = self._lines.setdefault(queue, Line())
            duties = act(line)
            is_in_line = waiter in line
            if not line:
                del self._lines[queue]
        self._store.watch.stir()
        if duties:
            self._tell(duties)
        return is_in_line
