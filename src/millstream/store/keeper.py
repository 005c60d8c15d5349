"""The keeper: the background thread of a store, for the fold, checkpoints and upkeep.

The thread starts with the first commit or the first waiting caller. A store whose file has an inbox
for other programs starts it at once, only to look for their messages. Its work is done in ordinary, bounded
commits. If the thread dies or never runs, no data is lost: only the tail of deltas grows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from millstream.engine.protocol import WriteEvents
from millstream.errors import MillstreamError

UPKEEP_S = 1.0
"""The interval of upkeep, such as retention by age."""

LOOK_S = 0.02
"""The interval of looks for messages of other programs, while the file is written."""

SOON_S = 0.002
"""The time from a write after a quiet time to the first look; further looks come at longer intervals."""

QUIET_LOOKS = 25
"""After so many looks without a write, the thread sleeps until the next write. A commit becomes visible
after its sync, so the looks go on for longer than a sync of a slow disk."""

Listen = Callable[[], WriteEvents]
"""Begins to report writes; raises `OSError` where the system does not report them."""


class Keeper:
    """Runs `work` when woken, when `look` returns True, and every second after that.

    `listen` saves looks: without writes there are no new messages.
    """

    def __init__(
        self,
        work: Callable[[], bool],
        *,
        on_failure: Callable[[Exception], None],
        look: Callable[[], bool] | None = None,
        listen: Listen | None = None,
    ) -> None:
        self._work = work
        self._look = look
        self._listen = listen
        self._events: WriteEvents | None = None
        self._quiet_looks = 0
        """The number of looks since the last write."""
        self._pause_s = LOOK_S
        """The time until the next look."""
        self._on_failure = on_failure
        self._reported = ""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._working = threading.RLock()
        self._pauses = 0
        self._stopping = False
        self._is_started = False
        """Whether `start` was called, perhaps during a pause."""
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Run the work soon."""
        self._is_started = True
        if not self._wake.is_set():
            self._ring()
        if self._thread is None:
            self.start()

    def _ring(self) -> None:
        self._wake.set()
        events = self._events
        if events is not None:
            events.wake()

    @property
    def is_paused(self) -> bool:
        """Whether background work is paused."""
        return self._pauses > 0

    def pause(self) -> AbstractContextManager[object]:
        """Wait for the current piece of work, and pause until the returned block ends."""
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
        """End the thread after the current piece of work."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def start(self) -> None:
        """Run the work every second from now on."""
        self._is_started = True
        self._start_thread()

    def start_looking(self) -> None:
        """Call `look` from now on, and run the work when it returns True."""
        if self._look is not None:
            self._start_thread()

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping and not self._pauses:
                self._thread = threading.Thread(
                    target=self._run, name="millstream-keeper", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            if self._await_work():
                self._work_until_done()

    def _await_work(self) -> bool:
        """Wait for a wake-up, a message of another program, or the next upkeep."""
        if self._look is None:
            self._wake.wait(UPKEEP_S)
            self._wake.clear()
            return True
        for _ in range(round(UPKEEP_S / LOOK_S)):
            if self._wake.wait(self._pause_s):
                self._wake.clear()
                return True
            self._pause_s = min(2 * self._pause_s, LOOK_S)
            if not self._pauses and self._sees_messages(self._look):
                self._quiet_looks = 0
                return True
            if self._is_quiet() and not self._await_write():
                break
        return self._is_started

    def _sees_messages(self, look: Callable[[], bool]) -> bool:
        try:
            return look()
        except MillstreamError:
            return False  # the next upkeep or the next caller reports the error

    def _is_quiet(self) -> bool:
        """Return whether the last looks found no messages, and nobody wrote meanwhile."""
        has_written = self._events is not None and self._reports_write(self._events, 0)
        self._quiet_looks = 0 if has_written else self._quiet_looks + 1
        return self._quiet_looks >= QUIET_LOOKS

    def _await_write(self) -> bool:
        """Sleep until a write, a wake-up or the next upkeep; return False for the upkeep."""
        if self._events is None:
            if self._listen is not None:
                try:
                    self._events = self._listen()
                except OSError:
                    self._listen = None
            return True  # writes before this moment were not reported: look once more
        if not self._wake.is_set() and self._reports_write(self._events, UPKEEP_S):
            self._quiet_looks, self._pause_s = 0, SOON_S
            return True
        return self._wake.is_set()

    def _reports_write(self, events: WriteEvents, timeout_s: float) -> bool:
        try:
            return events.wait(timeout_s)
        except OSError:
            self._events = self._listen = None
            return True

    def _work_until_done(self) -> None:
        try:
            while self._work_once():
                pass
        except MillstreamError as error:
            self._on_failure(error)
        except Exception as error:  # a bug: keep the thread alive, or no fold would happen any more
            self._on_failure(error)
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Report the traceback of an error once, as the interpreter does for a thread that dies."""
        if repr(error) == self._reported:
            return
        self._reported = repr(error)
        at = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(at))

    def _work_once(self) -> bool:
        with self._working:
            return not self._stopping and not self._pauses and self._work()
