"""Turns: contenders work alternately in short slices; refilling is not timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from millstream.bench.measure import ReportRow, Step, StepMeter, payloads, seconds
from millstream.header import HeaderMapping

FILL_BATCH = 1_000
ROUTED_QUEUES = 20
SLICE_S = 0.25


Label = Callable[[int], HeaderMapping]
"""The headers of a message, from a number that counts up."""


def by_region(number: int) -> HeaderMapping:
    """Headers that filters choose by."""
    return {"region": f"r{number % ROUTED_QUEUES}", "amount": number % 1_000}


class Backlog:
    """Messages that wait; refilled with payloads that never repeat."""

    def __init__(
        self,
        put: Callable[[Sequence[bytes], Sequence[HeaderMapping]], object],
        *,
        size: int,
        label: Label = by_region,
    ) -> None:
        self._label = label
        self._put = put
        self._size = size
        self._left = 0
        self._filled = 0

    def fill(self) -> None:
        """Put batches until it is as deep as it should be."""
        while self._left < self._size:
            numbers = range(self._filled, self._filled + FILL_BATCH)
            headers = list(map(self._label, numbers))
            self._put(payloads(FILL_BATCH), headers)
            self._filled += FILL_BATCH
            self._left += FILL_BATCH

    def took(self, count: int) -> int:
        """Count off messages that no longer wait, and return their number."""
        self._left -= count
        return count


def _nothing() -> None:
    """For sides that need no filling, or leave nothing to be settled."""


@dataclass(frozen=True, slots=True)
class Side:
    """A contender: filled before each slice, settled at the end of the slice."""

    step: Step
    fill: Callable[[], None] = _nothing
    settle: Callable[[], object] = _nothing


def alternate(
    contenders: list[Side], total_s: float, *, slice_s: float = SLICE_S
) -> list[StepMeter]:
    """Let sides work in turns until one has worked for so long; only filling is not timed."""
    meters = [StepMeter() for _ in contenders]
    for contender in contenders:
        contender.fill()
        contender.step()
    order = list(zip(contenders, meters, strict=True))
    while max(meter.elapsed_s for meter in meters) < total_s:
        for contender, meter in order:
            contender.fill()
            contender.settle()
            meter.run(contender.step, slice_s)
            began = seconds()
            contender.settle()
            meter.elapsed_s += seconds() - began
        order.reverse()
    return meters


class Crowd:
    """Steps in threads of their own, which all repeat theirs as fast as they can for a while."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._meters = [StepMeter() for _ in steps]
        self._pool = ThreadPoolExecutor(len(steps))

    def step(self, length_s: float) -> int:
        """Run all contenders for a while, and return the number of messages."""
        before = sum(meter.messages for meter in self._meters)
        list(self._pool.map(lambda m, step: m.run(step, length_s), self._meters, self._steps))
        return sum(meter.messages for meter in self._meters) - before

    def finish(self, row: ReportRow, alone: StepMeter, *, minimum: float) -> ReportRow:
        """End the threads; say how long their steps took, and how many times one thread they were."""
        self._pool.shutdown()
        all_steps = StepMeter()
        all_steps.step_s = [took_s for meter in self._meters for took_s in meter.step_s]
        row.p50_ms, row.p99_ms = all_steps.percentile_ms(0.5), all_steps.percentile_ms(0.99)
        times = row.per_second / alone.per_second()
        row.details = {
            "threads": len(self._steps),
            "one_thread_per_second": round(alone.per_second()),
            "times_one_thread": round(times, 2),
        }
        return row.require(f"≥ {minimum:g} times one thread", times >= minimum)
