"""The lines of all queues of a store, with their lock and their watches.

`model.line` has the rules of a line. Threads wait in `thread_lines`, coroutines in
`embedded.loop.claim_line`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from millstream.queue.model.line import Duty, Line, W
from millstream.queue.service import claims
from millstream.store.store import Store
from millstream.store.watch import Wake


class Lines(Generic[W]):
    """The lines of a store's queues; every thread may call its methods.

    `tell` is called outside the lock, on the thread of the event, possibly a committing thread. It
    must return quickly.
    """

    def __init__(self, store: Store, tell: Callable[[Sequence[tuple[W, Duty]]], None]) -> None:
        self._store = store
        self._tell = tell
        self._lock = threading.Lock()
        self._lines: dict[str, Line[W]] = {}
        self._watched: dict[W, tuple[list[bytes], Wake]] = {}
        self._append_watchers: dict[bytes, dict[W, str]] = {}
        """Names of logs → waiters that watch for appends to these logs, and their queues."""

    def join(self, queue: str, waiter: W, count: int) -> None:
        """Add a waiter to the end of a queue's line."""
        self._do(queue, lambda line: line.join(waiter, count))

    def change(self, queue: str) -> None:
        """Report that a message of the queue may be claimable."""
        self._do(queue, lambda line: line.change())

    def served(self, queue: str, waiter: W, remaining: int = 0) -> None:
        """Remove a waiter that got messages or an error; `remaining` messages stay claimable."""
        self._do(queue, lambda line: line.served(waiter, remaining))

    def in_vain(self, queue: str, waiter: W) -> bool:
        """Report that a waiter looked and got nothing; return whether it stays in line."""
        return self._do(queue, lambda line: line.in_vain(waiter), waiter)

    def leave(self, queue: str, waiter: W) -> bool:
        """Remove a waiter that gives up; return False if it still looks and leaves afterwards."""

        def leave(line: Line[W]) -> list[tuple[W, Duty]]:
            self._stop_watching(waiter)
            return line.leave(waiter)

        return not self._do(queue, leave, waiter)

    def watch(self, queue: str, waiter: W) -> float | None:
        """Watch the queue for its line; None if this waiter is not the watcher any more.

        Returns the number of seconds until time alone may make a message claimable; 0 if there is a
        message now.
        """
        with self._lock:
            if not self._watches(queue, waiter):
                return None  # so a crowd of leaving waiters costs no look each
        watched = claims.watched_before(self._store, queue)
        while self._begin_watch(queue, waiter, watched):
            # An append before the watch began woke no waiter, so glance again.
            before, (watched, change_s) = watched, claims.glance(self._store, queue)
            if watched == before:
                return change_s
        return None

    def _begin_watch(self, queue: str, waiter: W, watched: claims.WatchedKeys) -> bool:
        """Register a waiter for changes; return False if it is not the watcher any more."""
        wake = partial(self.change, queue)
        with self._lock:
            self._stop_watching(waiter)
            if not self._watches(queue, waiter):
                return False
            for key in watched.keys:
                self._store.watch.add(key, wake)
            for key in watched.claimable:
                self._append_watchers.setdefault(key, {})[waiter] = queue
            self._watched[waiter] = watched.keys, wake
        return True

    @property
    def expects_any(self) -> bool:
        """Return whether any waiter watches for appends of this process."""
        return bool(self._append_watchers)

    def expecting(self, key: bytes) -> list[W]:
        """Return the waiters to serve from the next commit to this log, and mark them as looking.

        The caller must run a claim for each waiter and then call `served` or `in_vain`; these
        waiters are not notified.
        """
        # A waiter that woke after the commit would need a commit of its own. The committer makes
        # the claim instead, so that the waiter wakes once, with its messages. If the commit fails
        # or grants nothing, the line still has the waiter as looking, and it looks by itself.
        waiters: list[W] = []
        with self._lock:
            for queue in [*self._append_watchers.get(key, {}).values()]:
                looking = [waiter for waiter, _ in self._lines[queue].change()]
                for waiter in looking:
                    self._stop_watching(waiter)
                waiters += looking
        return waiters

    def count(self, queue: str) -> int:
        """Return the number of claims that wait for a queue."""
        with self._lock:
            return len(self._lines.get(queue, ()))

    def looks(self, queue: str, waiter: W) -> bool:
        """Return whether a waiter looks, by itself or through a commit."""
        with self._lock:
            line = self._lines.get(queue)
            return line is not None and line.looks(waiter)

    def is_watching(self, waiter: W) -> bool:
        """Return whether the waiter watches the queue."""
        return waiter in self._watched

    def stop_watching(self, waiter: W) -> None:
        """End the watch of a waiter, if any."""
        with self._lock:
            self._stop_watching(waiter)

    def _watches(self, queue: str, waiter: W) -> bool:
        line = self._lines.get(queue)
        return line is not None and line.watches(waiter)

    def _stop_watching(self, waiter: W) -> None:
        watch = self._watched.pop(waiter, None)
        if watch is not None:
            for key in watch[0]:
                self._store.watch.remove(key, watch[1])
                watchers = self._append_watchers.get(key)
                if watchers is not None and watchers.pop(waiter, "") and not watchers:
                    del self._append_watchers[key]

    def _do(
        self, queue: str, act: Callable[[Line[W]], list[tuple[W, Duty]]], waiter: W | None = None
    ) -> bool:
        """Apply an event to a queue's line and deliver the resulting duties.

        Returns whether `waiter` is in line afterwards.
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
