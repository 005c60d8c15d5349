"""The only door to time.

Wall time stamps records and absolute schedules. Store time measures leases and delays: within one
boot it advances with the boot clock, so a wall clock that jumps neither expires nor freezes
anything; after a reboot it advances by the difference of the wall clock, never backwards.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """The source of time of a store; tests use a simulated clock."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as the machine's owner believes."""

    def boot_ms(self) -> int:
        """Milliseconds that never go back while the machine runs, also counted while it sleeps."""

    def boot_id(self) -> str:
        """Return an identifier of the current boot of the machine."""

    def seconds(self) -> float:
        """A monotonic count of seconds, for timeouts and durations within one process."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Milliseconds since boot."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def boot_id(self) -> str:
        """The kernel's name of this boot."""
        return _boot_id()

    seconds = staticmethod(time.monotonic)
    """A monotonic count of seconds; each commit asks several times, so there is no call of our own."""


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that also counts while the machine sleeps; elsewhere the monotonic one does."""


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        started_s = time.time() - time.monotonic()
        return f"started-{round(started_s / 60)}"


DRIFT_MS = 50
"""The wall clock and the boot clock may part by so much before store time is set again."""


class StoreTime:
    """Store time from an anchor: (boot id, boot ms, store ms) as committed in the store."""

    __slots__ = ("_clock", "_epoch_ms", "boot_id", "offset_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot_id = clock.boot_id()
        self.offset_ms = -clock.boot_ms()
        """Store time minus the boot clock."""
        self._epoch_ms = clock.wall_ms()

    def restart(self, *, boot_id: str, boot_ms: int, store_ms: int, wall_ms: int) -> None:
        """Continue from the clock readings of a commit: boot, boot clock, store time, wall time."""
        now_ms = self._clock.boot_ms()
        if boot_id == self.boot_id:
            offset_ms = store_ms - boot_ms
        else:
            passed_ms = max(0, self._clock.wall_ms() - wall_ms)
            offset_ms = store_ms + passed_ms - now_ms
        if offset_ms != self.offset_ms:
            self.offset_ms = offset_ms
            self._epoch_ms = self._clock.wall_ms() - now_ms - offset_ms

    def now(self) -> tuple[int, int]:
        """The boot clock and store time, both in milliseconds, at one moment."""
        boot_ms = self._clock.boot_ms()
        return boot_ms, boot_ms + self.offset_ms

    def epoch_ms(self) -> int:
        """The wall time of store time 0: how times are shown to people.

        It follows a wall clock that is set, and passes over the small differences between two looks at
        two clocks, so that one moment is told alike each time.
        """
        clock = self._clock
        found_ms = clock.wall_ms() - clock.boot_ms() - self.offset_ms
        if not -DRIFT_MS <= found_ms - self._epoch_ms <= DRIFT_MS:
            self._epoch_ms = found_ms
        return self._epoch_ms
