"""Ctrl-C on the main thread, at a moment that a test chooses."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import pytest

REPEAT_S = 0.05


@contextmanager
def interrupted(await_moment: Callable[[threading.Event], object]) -> Iterator[None]:
    """Press Ctrl-C when a function returns, which runs on another thread; the block must raise it.

    The function gets an event that is set when the block ends, and should return then. Python notes a
    signal that comes just before a lock blocks, and handles it only when the lock ends. So a second
    signal without an effect follows, until the first one was handled.
    """
    main = threading.get_ident()
    assert main == threading.main_thread().ident, "this test must run on the main thread"
    over = threading.Event()

    def press() -> None:
        await_moment(over)
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGINT)
        while not over.wait(REPEAT_S):
            signal.pthread_kill(main, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR2, before)


def code_on_main() -> Iterator[CodeType]:
    """The functions in which the main thread stands, innermost first."""
    main = threading.main_thread().ident
    assert main is not None
    frame: FrameType | None = sys._current_frames()[main]
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
