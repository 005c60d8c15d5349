"""The keeper: one background thread that folds, checkpoints and does the upkeep of the parts.

It starts when there is first something to do, or a caller that waits for others. Whatever it does is an ordinary, bounded commit; if
it dies, or never runs, nothing is lost: the tail is only longer to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from millstream.errors import MillstreamError

UPKEEP_S = 1.0
"""How often the parts are asked for upkeep, such as retention by age."""


class Keeper:
    """Runs `work` when woken, and every second from then on."""

    def __init__(
        self, work: Callable[[], bool], *, on_failure: Callable[[Exception], None]
    ) -> None:
        self._work = work
        self._on_failure = on_failure
        self._told = ""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._working = threading.RLock()
        self._pauses = 0
        self._stopping = False
        self._is_started = False
        """Whether it was to start, perhaps while it was paused."""
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have the work looked at soon."""
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self.start()

    @property
    def is_paused(self) -> bool:
        """Whether nothing shall happen in the background now."""
        return self._pauses > 0

    def pause(self) -> AbstractContextManager[object]:
        """Wait for the slice that it is at, and begin no other until the block ends, if there is one."""
        with self._lock:
            self._pauses += 1
        with self._working:
            ending = ExitStack()
        ending.callback(self._go_on)
        return ending

    def _go_on(self) -> None:
        with self._lock:
            self._pauses -= 1
        if self._thread is not None or self._wake.is_set():
            self.wake()
        elif self._is_started:
            self.start()

    def stop(self) -> None:
        """End the thread after the slice that it is at."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def start(self) -> None:
        """Look at the work every second from now on, without being woken."""
        with self._lock:
            self._is_started = True
            if self._thread is None and not self._stopping and not self._pauses:
                self._thread = threading.Thread(
                    target=self._run, name="millstream-keeper", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(UPKEEP_S)
            self._wake.clear()
            self._work_until_done()

    def _work_until_done(self) -> None:
        try:
            while self._work_once():
                pass
        except MillstreamError as error:
            self._on_failure(error)
        except Exception as error:  # a mistake of ours: without the thread nothing would be folded
            self._on_failure(error)
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Say where it was raised, as of a thread that ends by it, but not every second."""
        if repr(error) == self._told:
            return
        self._told = repr(error)
        at = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(at))

    def _work_once(self) -> bool:
        with self._working:
            return not self._stopping and not self._pauses and self._work()
