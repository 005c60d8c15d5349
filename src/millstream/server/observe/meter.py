"""The meter: what a server counts while it works.

Each server has a registry of its own, so that several in one process do not count for each other.
What the store and its queues know by themselves is asked for at a scrape: see `metrics.py`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (*(base / 10**power for power in (4, 3, 2, 1, 0) for base in (1, 2, 5)), 10, 30, 60)
GROUPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


class Meter:
    """Counters of one server; they may be counted up on any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._commands = Histogram(
            "millstream_command_seconds",
            "How long commands took, waiting included where a command waits for something.",
            ["command"],
            buckets=SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "millstream_command_failures",
            "Commands that were answered with an error, by its name.",
            ["command", "error"],
            registry=registry,
        )
        self._group_sizes = Histogram(
            "millstream_commit_group_operations",
            "Operations that one commit of this process made durable together.",
            buckets=GROUPS,
            registry=registry,
        )
        self._commit_times = Histogram(
            "millstream_commit_seconds",
            "How long a commit took: its operations, its rows, its sync.",
            buckets=SECONDS,
            registry=registry,
        )
        self._sync_times = Histogram(
            "millstream_sync_seconds",
            "How long a commit's sync took, which makes it durable.",
            buckets=SECONDS,
            registry=registry,
        )
        self.requests = Counter(
            "millstream_http_requests",
            "Requests answered, by status.",
            ["status"],
            registry=registry,
        )
        self.denied = Counter(
            "millstream_denied_requests",
            "Requests refused before they were looked at, by reason.",
            ["reason"],
            registry=registry,
        )
        self.requests_open = Gauge(
            "millstream_requests_open",
            "Requests and sockets that are being answered now.",
            registry=registry,
        )
        self.connections = Gauge(
            "millstream_connections", "Connections that are open now.", registry=registry
        )
        self.sockets = Gauge(
            "millstream_sockets", "WebSockets that are open now.", registry=registry
        )
        self.received_bytes = Counter(
            "millstream_received_bytes", "Bytes of bodies and frames received.", registry=registry
        )
        self.sent_bytes = Counter(
            "millstream_sent_bytes", "Bytes of bodies and frames sent.", registry=registry
        )
        self._children: dict[type, Histogram] = {}

    def answered(self, kind: type, seconds: float) -> None:
        """A command was carried out."""
        child = self._children.get(kind)
        if child is None:
            child = self._children[kind] = self._commands.labels(kind.__name__)
        child.observe(seconds)

    def committed(self, operations: int, commit_s: float, sync_s: float) -> None:
        """The store has committed a group; called on the thread that did."""
        self._group_sizes.observe(operations)
        self._commit_times.observe(commit_s)
        self._sync_times.observe(sync_s)

    def failed(self, kind: type, error: Exception) -> None:
        """A command was answered with an error."""
        self._failures.labels(kind.__name__, type(error).__name__).inc()
