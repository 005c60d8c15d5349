"""Polling: how an engine that is told nothing finds out that another process has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_S_MIN = 0.002
LOOK_S_MAX = 0.010

TURN_S = 0.1
"""How long one call looks: its caller may have nobody left to tell."""


def poll(has_changed: Callable[[], bool], stop: threading.Event) -> bool:
    """Look every few milliseconds, less often with time; True at the first change.

    False once `stop` is set, or after a while.
    """
    waited_s, pause_s = 0.0, LOOK_S_MIN
    while waited_s < TURN_S:
        if stop.wait(pause_s):
            return False
        if has_changed():
            return True
        waited_s += pause_s
        pause_s = min(pause_s * 1.5, LOOK_S_MAX)
    return False
