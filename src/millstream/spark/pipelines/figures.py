"""What a report says of queues: plain numbers, as the page shows them and `--json` prints them."""

from __future__ import annotations

from msgspec import Struct


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
    """The number of claimed messages that were appended in this step."""
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
    """The number of messages that failed for good with this reason."""
    last_ms: int


class FigureCounts(Struct, frozen=True, kw_only=True):
    """How many messages were claimed at least once and are not forgotten, and what became of them."""

    messages: int = 0
    attempts: int = 0
    done: int = 0
    failed: int = 0


class Fared(FigureCounts, frozen=True, kw_only=True):
    """The counts and durations of a group of messages."""

    wait: Spread = Spread()
    """From a message's append to its first claim."""
    work: Spread = Spread()
    """From a claim to the end of that attempt."""


class HeaderSlice(Fared, frozen=True, kw_only=True):
    """The messages with a value of a header, or without the header if the value is None."""

    header: str
    value: str | None


class QueueFigures(Fared, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    in_flight: int
    available: int
    """Waiting messages, including records that are not routed yet."""
    tries: dict[int, int]
    """How many messages took so many attempts."""
    minutes: list[Minute]
    reasons: list[Reason]
    slices: list[HeaderSlice]


class Figures(FigureCounts, frozen=True, kw_only=True):
    """A report; its counts are the sums of all queues."""

    store: str
    made_ms: int
    first_ms: int | None
    last_ms: int | None
    step_ms: int
    """How long one step of the charts over time is."""
    queues: list[QueueFigures]
