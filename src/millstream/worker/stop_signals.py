"""Stopping by signals: the first signal requests a stop, the second has its usual effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM or SIGINT; outside the main thread, leave signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, action in before.items():
            signal.signal(number, signal.SIG_DFL if action is None else action)

    def ask(number: int, frame: FrameType | None) -> None:
        restore()
        stop()

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()
