"""Events of writes to the write-ahead log (WAL) by any process, from Linux's inotify.

A thread that waits for the commits of other programs sleeps until Linux reports a write. Polling 50 times
per second cost 100 ms of processor time in 10 s beside an idle store, and events cost none (2026-11).

An event reports the write of a frame. The commit becomes visible after its sync, without a second event.
So the reader of events looks for a commit during some time after each event. Own commits cause events too.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import weakref

_MODIFY = 0x2
"""inotify's event for a write to a file."""

EVENTS_BYTES = 64 * 1024


class WalEvents:
    """A watch on the WAL of a file: one thread waits for writes, and any thread can end its wait."""

    def __init__(self, path: str) -> None:
        """Take the path of the WAL; raise `OSError` where the system offers no events."""
        if sys.platform != "linux":
            raise OSError("only Linux has inotify")
        self._path = os.fsencode(path)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        # Only the last reference closes descriptors: `wake` must never write to a number that the
        # system has given to another file.
        weakref.finalize(self, os.close, self._events).atexit = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell).atexit = False
        self._poll = select.poll()
        self._poll.register(self._events, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        self._watch()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write or a wake-up; return whether a write came since the last call."""
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout_s * 1000)}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._events in ready:
            os.read(self._events, EVENTS_BYTES)
            return True
        if not ready and timeout_s:
            self._watch()  # the WAL may be another file by now; for the same file this does nothing
        return False

    def wake(self) -> None:
        """End the wait of the other thread."""
        os.eventfd_write(self._bell, 1)

    def _watch(self) -> None:
        _checked(self._libc.inotify_add_watch(self._events, self._path, _MODIFY))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
