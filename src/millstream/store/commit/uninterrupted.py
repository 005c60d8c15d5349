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
    """Return whether a signal handler may have raised the error, rather than the running code.

    To tell the two apart, the caller runs the work again on another thread.
    """
    if isinstance(error, MillstreamError):
        return False
    return threading.current_thread() is threading.main_thread()


class Rescue:
    """A piece of work that runs exactly once, however often its waiting caller is interrupted."""

    def __init__(self, work: Callable[[], None], interrupt: BaseException) -> None:
        self._work = work
        self._taken = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self.is_done = False
        self.failure: BaseException | None = None
        # Release locks and snapshots that the variables of the interrupted code still hold.
        traceback.clear_frames(interrupt.__traceback__)

    def finish(self) -> None:
        """Run the work and wait for its end; further interrupts are dropped, the first is raised later."""
        while not self.is_done:
            try:
                while not self.is_done:  # an interrupt can also hit the jump back to this line
                    try:
                        start_new_thread(self._run, ())
                        self._over.acquire()
                    except BaseException:
                        pass
            except BaseException:
                pass

    def _run(self) -> None:
        if not self._taken.acquire(blocking=False):
            return  # after an interrupt the caller has started a second thread
        try:
            self._work()
        except BaseException as error:
            self.failure = error
        self.is_done = True
        self._over.release()
