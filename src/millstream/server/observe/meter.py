"""The meter: the counters of a server.

Every server has a registry: several servers in a process count separately. The
figures of the store and its queues are read at a scrape: see `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.registry import Collector

from millstream.server.observe.counters import (
    CounterByStatus,
    HistogramByCommand,
    PlainCounter,
    PlainGauge,
    PlainHistogram,
)

C = TypeVar("C", bound=Collector)

SECONDS = (*(base / 10**power for power in (4, 3, 2, 1, 0) for base in (1, 2, 5)), 10, 30, 60)
GROUPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


class Meter:
    """The counters of one server. Counters of the Prometheus library are thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._commands = self._add(
            HistogramByCommand(
                "millstream_command_seconds",
                "How long commands took, including the time that a command waited.",
                SECONDS,
            )
        )
        self._failures = self._counter(
            "command_failures",
            "Commands that were answered with an error, by the error's name.",
            ["command", "error"],
        )
        self._group_sizes = self._histogram(
            "commit_group_operations",
            "Operations that one commit of this process made durable together.",
            GROUPS,
        )
        self._commit_times = self._histogram(
            "commit_seconds", "How long a commit took: its operations, its rows, its sync."
        )
        self._sync_times = self._histogram(
            "sync_seconds", "How long a commit's sync took, which makes it durable."
        )
        self.requests = self._add(
            CounterByStatus("millstream_http_requests", "Requests answered, by status.")
        )
        self.denied = self._counter(
            "denied_requests", "Requests refused before they were read, by reason.", ["reason"]
        )
        self.requests_open = self._add(
            PlainGauge(
                "millstream_requests_open", "Requests and sockets that are being answered now."
            )
        )
        self.connections = self._gauge("connections", "Connections that are open now.")
        self.sockets = self._gauge("sockets", "WebSockets that are open now.")
        self.received_bytes = self._add(
            PlainCounter("millstream_received_bytes", "Bytes of bodies and frames received.")
        )
        self.sent_bytes = self._add(
            PlainCounter("millstream_sent_bytes", "Bytes of bodies and frames sent.")
        )

    def _add(self, collector: C) -> C:
        self.registry.register(collector)
        return collector

    def _histogram(self, name: str, text: str, bounds: Sequence[float] = SECONDS) -> PlainHistogram:
        return self._add(PlainHistogram(f"millstream_{name}", text, bounds))

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"millstream_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"millstream_{name}", text, registry=self.registry)

    def answered(self, kind: type, seconds: float) -> None:
        """Count an executed command. Called by the event loop."""
        self._commands.observe(kind, seconds)

    def committed(self, operations: int, commit_s: float, sync_s: float, _lock_s: float) -> None:
        """Count a commit group. Called by the committing thread, under the write lock."""
        self._group_sizes.observed.observe(operations)
        self._commit_times.observed.observe(commit_s)
        self._sync_times.observed.observe(sync_s)

    def commit_counts(self) -> list[tuple[float, int]]:
        """Return the number of commits that took at most each bound in seconds."""
        return self._commit_times.observed.counts()

    def connections_open(self) -> int:
        """Return the number of open connections."""
        (family,) = self.connections.collect()
        return int(family.samples[0].value)

    def failed(self, kind: type, error: Exception) -> None:
        """Count a command that was answered with an error."""
        self._failures.labels(kind.__name__, type(error).__name__).inc()
