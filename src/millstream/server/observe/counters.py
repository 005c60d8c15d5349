"""Counters: numbers that cost little to count up, in the form that Prometheus reads.

The library's own take a lock for each number; a histogram has three of them. A server counts several
times per request. So these are plain numbers, and become metrics when they are asked for. Each is
counted up by one thread at a time: by the event loop, or by the thread that commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector


class PlainCounter(Collector):
    """A counter; `count` may be added to by its owner."""

    def __init__(self, name: str, text: str) -> None:
        self.count = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Its one family."""
        yield CounterMetricFamily(self._name, self._text, value=self.count)


class PlainGauge(Collector):
    """A number that goes up and down; `count` may be changed by its owner."""

    def __init__(self, name: str, text: str) -> None:
        self.count = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Its one family."""
        yield GaugeMetricFamily(self._name, self._text, value=self.count)


class CounterByStatus(Collector):
    """A counter for each status of an answer."""

    def __init__(self, name: str, text: str) -> None:
        self.counts: dict[int, int] = {}
        self._name = name
        self._text = text

    def add(self, status: int) -> None:
        """One more answer with this status."""
        self.counts[status] = self.counts.get(status, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Its one family, with a sample for each status that was ever answered."""
        family = CounterMetricFamily(self._name, self._text, labels=["status"])
        for status, count in [*self.counts.items()]:
            family.add_metric([str(status)], count)
        yield family


class Observed:
    """How often values lay between which bounds, and what they sum up to."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> list[tuple[float, int]]:
        """How many values were at most so large, for each bound and for no bound at all."""
        return [*zip((*self._bounds, inf), accumulate(self._counts), strict=True)]

    def enter(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Put it into a family."""
        buckets = [
            ("+Inf" if bound == inf else str(float(bound)), count) for bound, count in self.counts()
        ]
        family.add_metric(labels, buckets, sum_value=self._total)


class PlainHistogram(Collector):
    """A histogram without labels."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.observed = Observed(bounds)
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Its one family."""
        family = HistogramMetricFamily(self._name, self._text)
        self.observed.enter(family)
        yield family


class HistogramByCommand(Collector):
    """A histogram for each command."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._observed: dict[type, Observed] = {}
        self._bounds = bounds
        self._name = name
        self._text = text

    def observe(self, kind: type, value: float) -> None:
        """One more value of a command."""
        found = self._observed.get(kind)
        if found is None:
            found = self._observed[kind] = Observed(self._bounds)
        found.observe(value)

    def collect(self) -> Iterator[Metric]:
        """Its one family, with the samples of each command that was ever answered."""
        family = HistogramMetricFamily(self._name, self._text, labels=["command"])
        for kind, one in [*self._observed.items()]:
            one.enter(family, [kind.__name__])
        yield family
