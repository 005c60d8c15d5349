"""Turns: sides that work on backlogs one after the other; filling up again is not timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.bench.measure import Meter, Step, seconds
from millstream.record import Headers

PAYLOAD_BYTES = 100
FILL_BATCH = 1_000
ROUTED_QUEUES = 20


class Backlog:
    """Messages that wait; refilled with payloads that never repeat."""

    def __init__(
        self, put: Callable[[Sequence[bytes], Sequence[Headers]], object], *, size: int
    ) -> None:
        self._put = put
        self._size = size
        self._left = 0
        self._filled = 0

    def fill(self) -> None:
        """Put batches until it is as deep as it should be."""
        while self._left < self._size:
            noise = os.urandom(PAYLOAD_BYTES * FILL_BATCH)
            values = [noise[i : i + PAYLOAD_BYTES] for i in range(0, len(noise), PAYLOAD_BYTES)]
            numbers = range(self._filled, self._filled + FILL_BATCH)
            headers: list[Headers] = [
                {"region": f"r{number % ROUTED_QUEUES}", "amount": number % 1_000}
                for number in numbers
            ]
            self._put(values, headers)
            self._filled += FILL_BATCH
            self._left += FILL_BATCH

    def took(self, count: int) -> int:
        """Some of them no longer wait; answers how many."""
        self._left -= count
        return count


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that take turns: filled before each slice, settled at its end."""

    step: Step
    fill: Callable[[], None]
    settle: Callable[[], object]


def alternate(sides: list[Side], total_s: float, *, slice_s: float) -> list[Meter]:
    """Let sides work in turns until one has worked for so long; only filling is not timed."""
    meters = [Meter() for _ in sides]
    for side in sides:
        side.fill()
        side.step()
    order = list(zip(sides, meters, strict=True))
    while max(meter.elapsed_s for meter in meters) < total_s:
        for side, meter in order:
            side.fill()
            side.settle()
            meter.run(side.step, slice_s)
            began = seconds()
            side.settle()
            meter.elapsed_s += seconds() - began
        order.reverse()
    return meters
