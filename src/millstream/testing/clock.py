"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading

from millstream.errors import InvalidInput
from millstream.record import Seconds, to_ms

START_MS = 1_700_000_000_000
"""The default start of the wall clock: a day in November 2023."""


class SimulatedClock:
    """The clocks of a simulated machine; any thread may read and move them."""

    def __init__(self, wall_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._wall_ms = wall_ms
        self._boot_ms = 0
        self._run_ms = 0
        self._boots = 1

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as the machine's owner believes."""
        return self._wall_ms

    def boot_ms(self) -> int:
        """Milliseconds since the simulated boot."""
        return self._boot_ms

    def boot_id(self) -> str:
        """The name of the simulated boot."""
        return f"boot-{self._boots}"

    def seconds(self) -> float:
        """A monotonic count of seconds."""
        return self._run_ms / 1000

    def advance(self, duration: Seconds) -> None:
        """Let time pass, on every clock."""
        passed_ms = to_ms(duration)
        if passed_ms < 0:
            raise InvalidInput(f"time does not go back: {duration}; jump() moves the wall clock")
        with self._lock:
            self._wall_ms += passed_ms
            self._boot_ms += passed_ms
            self._run_ms += passed_ms

    def jump(self, duration: Seconds) -> None:
        """Set the wall clock forward or back; no time passes."""
        with self._lock:
            self._wall_ms += to_ms(duration)

    def reboot(self, *, off: Seconds = 0) -> None:
        """Start the machine anew after it was off for a while; its boot clock begins at 0."""
        with self._lock:
            self._wall_ms += to_ms(off)
            self._run_ms += to_ms(off)
            self._boot_ms = 0
            self._boots += 1
