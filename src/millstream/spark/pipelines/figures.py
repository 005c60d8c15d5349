"""What a report says of queues: plain numbers, as the page shows them and `--json` prints them."""

from __future__ import annotations

from msgspec import Struct

PERCENTILES = (0.5, 0.9, 0.99)


class Spread(Struct, frozen=True, kw_only=True):
    """How long something took, in seconds: the median, nine in ten, 99 in a hundred, the longest."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None


class Minute(Struct, frozen=True, kw_only=True):
    """What happened in a queue within one minute, or a longer step of the report."""

    at_ms: int
    arrived: int = 0
    """Messages that were appended then, of those that were claimed since."""
    claimed: int = 0
    done: int = 0
    failed: int = 0
    again: int = 0
    """Attempts that ended without success and left others to be made."""
    wait_p50: float | None = None
    wait_p99: float | None = None
    work_p50: float | None = None
    work_p99: float | None = None


class Reason(Struct, frozen=True, kw_only=True):
    """Why attempts went wrong."""

    reason: str
    attempts: int
    messages: int
    failed: int
    """Messages that failed for good for it."""
    last_ms: int


class Slice(Struct, frozen=True, kw_only=True):
    """The messages that have one value of a header; None if they lack it."""

    header: str
    value: str | None
    messages: int
    done: int
    failed: int
    attempts: int
    wait: Spread
    work: Spread


class QueueFigures(Struct, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    messages: int
    """Messages that were claimed at least once and are not forgotten."""
    attempts: int
    done: int
    failed: int
    in_flight: int
    available: int
    """What waits now, that which was not routed yet included."""
    wait: Spread
    """From a message's append to its first claim."""
    work: Spread
    """From a claim to the end of that attempt."""
    tries: dict[int, int]
    """How many messages took so many attempts."""
    minutes: list[Minute]
    reasons: list[Reason]
    slices: list[Slice]


class Figures(Struct, frozen=True, kw_only=True):
    """A whole report."""

    store: str
    made_ms: int
    first_ms: int | None
    last_ms: int | None
    step_ms: int
    """How long one step of the charts over time is."""
    queues: list[QueueFigures]

    @property
    def messages(self) -> int:
        """Messages of all queues."""
        return sum(one.messages for one in self.queues)

    @property
    def done(self) -> int:
        """Messages that are done, of all queues."""
        return sum(one.done for one in self.queues)

    @property
    def failed(self) -> int:
        """Messages that failed, of all queues."""
        return sum(one.failed for one in self.queues)

    @property
    def attempts(self) -> int:
        """Attempts of all queues."""
        return sum(one.attempts for one in self.queues)
