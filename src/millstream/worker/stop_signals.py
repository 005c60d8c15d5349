"""Stopping by signals: the first signal requests a stop, the second has its usual effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_stops: list[Callable[[], None]] = []
"""The functions that the next signal calls. The blocks of the main thread may end in any order."""
_actions: dict[int, Any] = {}
"""The usual effect of each signal, while a first signal would request a stop."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM or SIGINT; outside the main thread, leave signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stops.append(stop)
    try:
        _install()
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _install() -> None:
    for number in SIGNALS:
        if number not in _actions:
            _actions[number] = signal.getsignal(number)
            signal.signal(number, _request_stops)


def _restore() -> None:
    while _actions:
        number, action = _actions.popitem()
        signal.signal(number, signal.SIG_DFL if action is None else action)


def _request_stops(number: int, frame: FrameType | None) -> None:
    _restore()
    for stop in list(_stops):
        stop()
