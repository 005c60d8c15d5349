"""Measuring: alternate between a limit and the thing itself, and compare.

Machines are noisy, so nothing is compared across runs: each workload takes turns with its limit,
in short slices, in the same directory, and only the ratio is worth quoting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from millstream.clock import SystemClock

seconds = SystemClock().seconds
SLICE_S = 0.25

Step = Callable[[], int]
"""Does a piece of work and answers how many messages that was."""


class Row(Struct, kw_only=True, omit_defaults=True):
    """One line of a report."""

    workload: str
    payload_bytes: int = 0
    batch: int = 1
    per_second: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    limit_per_second: float | UnsetType = UNSET
    reference_per_second: float | UnsetType = UNSET
    ratio: float | UnsetType = UNSET
    sync_delay_ms: float = 0.0
    required: str = ""
    passed: bool | UnsetType = UNSET
    void: str = ""
    """Why this run proves nothing; empty if it does."""
    details: dict[str, Any] = {}


class Meter:
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


def take_turns(steps: list[Step], total_s: float) -> list[Meter]:
    """Run several steps in turns of a quarter of a second each; one meter per step."""
    meters = [Meter() for _ in steps]
    rounds = max(2, round(total_s / SLICE_S))
    for step in steps:
        step()
    for turn in range(rounds):
        order = range(len(steps)) if turn % 2 == 0 else reversed(range(len(steps)))
        for index in order:
            meters[index].run(steps[index], SLICE_S)
    return meters
