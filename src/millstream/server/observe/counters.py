"""Counters: cheap numbers, which become Prometheus metrics at a scrape.

The counters of the Prometheus library take a lock per number, and a histogram has three numbers. A
server counts several times per request, so these counters are plain numbers. A single thread writes
each counter at a time: the event loop, or the thread that commits.
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
    """A counter; its owner adds to `count`."""

    def __init__(self, name: str, text: str) -> None:
        self.count = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield CounterMetricFamily(self._name, self._text, value=self.count)


class PlainGauge(Collector):
    """A number that goes up and down; its owner changes `count`."""

    def __init__(self, name: str, text: str) -> None:
        self.count = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield GaugeMetricFamily(self._name, self._text, value=self.count)


class CounterByStatus(Collector):
    """A counter for each status of an answer."""

    def __init__(self, name: str, text: str) -> None:
        self.counts: dict[int, int] = {}
        self._name = name
        self._text = text

    def add(self, status: int) -> None:
        """Count an answer with a status."""
        self.counts[status] = self.counts.get(status, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, with a sample for each status that occurred."""
        family = CounterMetricFamily(self._name, self._text, labels=["status"])
        for status, count in [*self.counts.items()]:
            family.add_metric([str(status)], count)
        yield family


class Observed:
    """The counts of values between bounds, and the sum of the values."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> list[tuple[float, int]]:
        """Return the number of values up to each bound, and the number of all values."""
        return [*zip((*self._bounds, inf), accumulate(self._counts), strict=True)]

    def enter(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add the counts to a metric family."""
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
        """Yield the metric."""
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
        """Count a value of a command."""
        observed = self._observed.get(kind)
        if observed is None:
            observed = self._observed[kind] = Observed(self._bounds)
        observed.observe(value)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, with samples for each command that occurred."""
        family = HistogramMetricFamily(self._name, self._text, labels=["command"])
        for kind, observed in [*self._observed.items()]:
            observed.enter(family, [kind.__name__])
        yield family
