"""Measurements: the work and time of a workload, its comparison, and its requirements.

Machines are noisy, so nothing is compared across runs: each workload takes turns with its limit,
in short slices, in the same directory, and only the ratio is worth quoting.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from millstream.clock import SystemClock

seconds = SystemClock().seconds
PAYLOAD_BYTES = 100

Step = Callable[[], int]
"""Does a piece of work and answers how many messages that was."""


class ReportRow(Struct, kw_only=True, omit_defaults=True):
    """One line of a report."""

    workload: str = ""
    payload_bytes: int = 0
    batch: int = 1
    per_second: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    beside_per_second: float | UnsetType = UNSET
    """Of the limit or the peer that took turns with it."""
    ratio: float | UnsetType = UNSET
    sync_delay_ms: float = 0.0
    required: str = ""
    passed: bool | UnsetType = UNSET
    void: str = ""
    """The reason why a run is void; empty for a valid run."""
    details: dict[str, Any] = {}

    def require(self, requirement: str, reached: bool) -> ReportRow:
        """Add a requirement; a row passes if it reaches all requirements."""
        self.required = f"{self.required} and {requirement}" if self.required else requirement
        self.passed = reached and self.passed is not False
        return self

    def require_rate(self, per_second: int) -> ReportRow:
        """Ask for so many messages per second."""
        return self.require(f"≥ {per_second:,}/s", self.per_second >= per_second)

    def require_ratio(self, minimum: float) -> ReportRow:
        """Ask for so large a part of what the limit or peer reached."""
        assert self.ratio is not UNSET
        return self.require(f"ratio ≥ {minimum:g}", self.ratio >= minimum)


class StepMeter:
    """Counts messages and times steps."""

    def __init__(self) -> None:
        self.messages = 0
        self.elapsed_s = 0.0
        self.step_s: list[float] = []

    def run(self, step: Step, slice_s: float) -> None:
        """Repeat a step for a slice of time."""
        began = now = seconds()
        while now - began < slice_s:
            self.messages += step()
            after = seconds()
            self.step_s.append(after - now)
            now = after
        self.elapsed_s += now - began

    def per_second(self) -> float:
        """Messages per second, over all slices."""
        return self.messages / self.elapsed_s if self.elapsed_s else 0.0

    def percentile_ms(self, share: float) -> float:
        """The time of a step that a share of all steps stayed below, in ms."""
        if not self.step_s:
            return 0.0
        ordered = sorted(self.step_s)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 4)

    def row(self, *, beside: StepMeter | None = None, **figures: Any) -> ReportRow:
        """Return a row with the measurement and its comparison with the alternating side."""
        reached = 0.0 if beside is None else beside.per_second()
        if beside is not None:
            figures["beside_per_second"] = round(reached)
            figures["ratio"] = round(self.per_second() / reached, 3) if reached else 0.0
        return ReportRow(
            payload_bytes=PAYLOAD_BYTES,
            per_second=round(self.per_second()),
            p50_ms=self.percentile_ms(0.5),
            p99_ms=self.percentile_ms(0.99),
            **figures,
        )


def payloads(count: int, size: int = PAYLOAD_BYTES) -> list[bytes]:
    """Return values without repetitions."""
    noise = os.urandom(size * count)
    return [noise[i : i + size] for i in range(0, len(noise), size)]


def memory_mib(process: int | None = None) -> float:
    """Return the anonymous memory of a process, by default of this process."""
    status = Path(f"/proc/{process or os.getpid()}/status").read_text(encoding="ascii")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kib) / 1024
