"""Signals wait for the end of a commit: their handlers must not raise in the middle of it.

Python runs signal handlers on the main thread, between any two steps of its code: Ctrl-C, a time limit,
`sys.exit()` in a handler for SIGTERM. A handler that raises would leave shared state half changed. So
code that changes shared state runs inside `with deferred:`. There, signals are noted instead of handled,
and their handlers are called when the block ends.

Code inside the block must not wait for long, or must give up when `have_come` returns True: the caller
then leaves the block, the handlers run, and the caller begins anew if none of them raised.

Only handlers written in Python are replaced. The wakeup file descriptor of an event loop still hears
every signal at once. The block does nothing on other threads, which never run handlers.

The alternatives: `pthread_sigmask` on the main thread does not help, since the kernel then hands the
signal to another thread, and Python still runs the handler on the main thread. Commits on a thread of
their own cost two thread switches each. Repairs after an interrupt, at every place that it can hit, can
be hit by the next one.
"""

from __future__ import annotations

import os
import signal as signals
import threading

# The functions of `signal` convert numbers to enumerations, which takes longer than the change itself.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from _thread import LockType, get_ident
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

NAMES = ("INT", "TERM", "ALRM", "HUP", "QUIT", "USR1", "USR2", "BREAK")
NUMBERS = tuple(
    int(getattr(signals, f"SIG{name}")) for name in NAMES if hasattr(signals, f"SIG{name}")
)
"""The signals that wait: a user, a time limit or a supervisor ends work by them. Each costs a question
per block; to ask for 31 signals cost 8 % of a commit. If the handler of another signal raises
inside a commit, the commit fails with an unknown outcome."""

STEP_S = 0.05
"""A waiting main thread looks this often whether a signal has come."""

_main_thread = threading.main_thread().ident


class Deferral:
    """A reusable block; the blocks of one thread may be nested."""

    __slots__ = ("_come", "_depth", "_handlers", "_recorder", "_seen")

    def __init__(self) -> None:
        self._depth = 0
        self._come: dict[int, FrameType | None] = {}
        """The noted signals in order, each with the frame that it hit first."""
        self._seen: list[Any] = []
        """The handlers of all signals, when `_handlers` was made."""
        self._handlers: dict[int, Handler] = {}
        """The handlers that were written in Python."""
        self._recorder: Handler = self._record

    @property
    def have_come(self) -> bool:
        """Whether signals wait for the end of a block of this thread."""
        return bool(self._come) and get_ident() == _main_thread

    def __enter__(self) -> None:
        if get_ident() != _main_thread:
            return
        if self._depth:
            self._depth += 1
            return
        # Handlers may be changed at any time, and Python tells nobody.
        if (seen := [*map(getsignal, NUMBERS)]) != self._seen:
            self._note_handlers(seen)
        recorder = self._recorder
        try:
            for number in self._handlers:
                signal(number, recorder)
        except BaseException:  # a handler that was not replaced yet has raised
            self._leave()
            raise
        self._depth = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() != _main_thread:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        recorder = self._recorder
        try:
            # A handler may raise here as soon as it is back. Recorders that then remain call their
            # handlers themselves, and are removed by the next block.
            for number, handler in self._handlers.items():
                current = signal(number, handler)
                if current is not recorder:
                    signal(number, current)  # the code inside the block has set another handler
        finally:
            self._depth = 0
            if self._come:
                self._handle()

    def _note_handlers(self, seen: list[Any]) -> None:
        """Note the handlers that were written in Python."""
        # A method of its own: a comprehension that uses `self` slows down each use of `self` around it.
        self._handlers = {
            number: self._handlers[number] if handler is self._recorder else handler
            for number, handler in zip(NUMBERS, seen, strict=True)
            if callable(handler)
        }
        self._seen = seen

    def _leave(self) -> None:
        self._depth = 1
        self.__exit__(None, None, None)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._come.setdefault(number, frame)
        else:
            self._handlers[number](number, frame)

    def _handle(self) -> None:
        """Call the handlers of the noted signals in order, even if an earlier handler raises."""
        number = next(iter(self._come))
        frame = self._come.pop(number)
        try:
            self._handlers[number](number, frame)
        finally:
            if self._come:
                self._handle()

    def after_fork(self, parents_main_thread: int | None) -> None:
        """End the block of a main thread that is not in this child process."""
        if self._depth and get_ident() != parents_main_thread:
            self._come.clear()
            self._leave()


deferred = Deferral()


def acquire(lock: LockType, timeout_s: float = -1) -> bool:
    """Acquire a lock; return False after the timeout, or soon after a signal has come.

    A timeout of -1 means no timeout.
    """
    if get_ident() != _main_thread:
        return lock.acquire(timeout=timeout_s)
    left_s = timeout_s if timeout_s >= 0 else threading.TIMEOUT_MAX
    while not deferred.have_come:
        if lock.acquire(timeout=min(left_s, STEP_S)):
            return True
        left_s -= STEP_S
        if left_s <= 0:
            break
    return False


def _after_fork() -> None:
    global _main_thread
    parents_main_thread, _main_thread = _main_thread, get_ident()
    deferred.after_fork(parents_main_thread)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
