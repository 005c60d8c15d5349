"""The pulse of a store: how it stands at a time, as the live view, `top` and the dashboard show it."""

from __future__ import annotations

from msgspec import Struct

from millstream.embedded.totals import Totals
from millstream.record import Status


class Flow(Struct, frozen=True):
    """Messages per second, of all processes that share the store."""

    published: float = 0.0
    """Records appended to logs, puts to queues and messages of rooms among them."""
    claimed: float = 0.0
    """Messages that consumers were given, repeats included."""
    acked: float = 0.0
    """Messages that are done."""


class CommitTimes(Struct, frozen=True):
    """How long commits of this process took in the last seconds; null if there were none."""

    p50: float | None = None
    """The median, in milliseconds."""
    p99: float | None = None
    """Only one of a hundred took longer, in milliseconds."""


class Pulse(Struct, frozen=True, kw_only=True):
    """How a server and its store stood at a time."""

    time: int
    """Milliseconds since the epoch."""
    rates: Flow
    """Messages per second."""
    depth: int
    """Messages of all queues that are neither done nor failed."""
    oldest_age_s: float
    """How long the message has waited that can be claimed for the longest time; 0 if none can be:
    delayed ones are not counted until they are due."""
    commit_ms: CommitTimes = CommitTimes()
    """How long commits took."""
    logs: int
    """How many logs there are that users have named."""
    queues: int
    """How many queues there are."""
    rooms: int
    """How many rooms there are."""
    connections: int = 0
    """How many connections this server has."""
    health: Status
    """As `GET /health` says it."""


def flow_between(before: Totals, after: Totals, seconds: float) -> Flow:
    """How much happened per second between two looks."""
    if seconds <= 0:
        return Flow()
    return Flow(
        published=round((after.published - before.published) / seconds, 1),
        claimed=round((after.claimed - before.claimed) / seconds, 1),
        acked=round((after.done - before.done) / seconds, 1),
    )


def age_s(totals: Totals, now_ms: int) -> float:
    """How long the message has waited that can be claimed for the longest time; 0 if none can be."""
    since_ms = totals.claimable_ms
    return 0.0 if since_ms is None else max(0.0, (now_ms - since_ms) / 1000)
