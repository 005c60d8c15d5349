"""The pulse of a store: its state at a time, for the live view, `top` and the dashboard."""

from __future__ import annotations

from msgspec import Struct

from millstream.embedded.totals import Totals
from millstream.record import Status


class Flow(Struct, frozen=True):
    """Messages per second, of all processes that share the store."""

    published: float = 0.0
    """Records appended to logs, including puts to queues and messages of rooms."""
    claimed: float = 0.0
    """Messages delivered to consumers, including repeated deliveries."""
    acked: float = 0.0
    """Messages acknowledged."""


class CommitTimes(Struct, frozen=True):
    """The duration of this process's commits in the last seconds; null without commits."""

    p50: float | None = None
    """The median, in milliseconds."""
    p99: float | None = None
    """The 99th percentile, in milliseconds."""


class Pulse(Struct, frozen=True, kw_only=True):
    """The state of a server and its store at a time."""

    time: int
    """Milliseconds since the epoch."""
    rates: Flow
    """Messages per second."""
    depth: int
    """The number of unfinished messages of all queues."""
    oldest_age_s: float
    """How long the oldest claimable message has waited; 0 without claimable messages. Delayed
    messages count from their due time.
    """
    commit_ms: CommitTimes = CommitTimes()
    """The duration of commits."""
    logs: int
    """The number of logs named by users."""
    queues: int
    """The number of queues."""
    rooms: int
    """The number of rooms."""
    connections: int = 0
    """The number of connections of this server."""
    health: Status
    """The status that `GET /health` reports."""


def flow_between(before: Totals, after: Totals, seconds: float) -> Flow:
    """Return the messages per second between two looks."""
    if seconds <= 0:
        return Flow()
    return Flow(
        published=round((after.published - before.published) / seconds, 1),
        claimed=round((after.claimed - before.claimed) / seconds, 1),
        acked=round((after.done - before.done) / seconds, 1),
    )


def age_s(totals: Totals, now_ms: int) -> float:
    """Return how long the oldest claimable message has waited; 0 without claimable messages."""
    since_ms = totals.claimable_ms
    return 0.0 if since_ms is None else max(0.0, (now_ms - since_ms) / 1000)
