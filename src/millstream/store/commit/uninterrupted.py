"""Work that an interrupt must not leave half done is finished on another thread.

Signal handlers run on the main thread, between any two steps of Python code: Ctrl-C, a time limit,
`sys.exit()` in a handler for SIGTERM. A second one can hit the code that cleans up after the first.
No handler runs on the thread that is started here.
"""

from __future__ import annotations

import threading
import traceback
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

from millstream.errors import MillstreamError


def may_be_an_interrupt(error: Exception) -> bool:
    """Whether a signal handler may have raised it, rather than the code that was running.

    Whatever was being done is then done again on another thread, to tell the two apart.
    """
    if isinstance(error, MillstreamError):
        return False
    return threading.current_thread() is threading.main_thread()


class Rescue:
    """One piece of work, done once however often its waiting caller is interrupted."""

    def __init__(self, work: Callable[[], None], interrupt: BaseException) -> None:
        self._work = work
        self._taken = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self.is_done = False
        self.failure: BaseException | None = None
        # What the interrupted code still holds by its variables, such as a turn to write, is let go.
        traceback.clear_frames(interrupt.__traceback__)

    def finish(self) -> None:
        """Have it done, and wait; interrupts that come meanwhile are dropped: one will be raised."""
        while not self.is_done:
            try:
                while not self.is_done:  # the jump back to here is a place for interrupts too
                    try:
                        start_new_thread(self._run, ())
                        self._over.acquire()
                    except BaseException:
                        pass
            except BaseException:
                pass

    def _run(self) -> None:
        if not self._taken.acquire(blocking=False):
            return  # an interrupt had its caller start a second thread
        try:
            self._work()
        except BaseException as error:
            self.failure = error
        self.is_done = True
        self._over.release()
