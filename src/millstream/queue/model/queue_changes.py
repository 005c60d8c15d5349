"""What can happen to a queue: each change is a value, kept in the delta of its commit."""

from __future__ import annotations

from msgspec import Struct, field

from millstream.queue.model.counts import Counts
from millstream.queue.model.spec import QueueSpec


class Specified(Struct, array_like=True, frozen=True, tag=1):
    """The queue exists, or its spec was altered; `numbers_from` begins another bucket size."""

    queue_id: int
    name: str
    spec: QueueSpec
    at_ms: int
    numbers_from: int


class Moved(Struct, array_like=True, frozen=True, tag=2):
    """Messages were routed, claimed, or finished. -1 leaves a number as it is."""

    at_ms: int
    counts: Counts = field(default_factory=Counts)
    next: int = -1
    free: list[tuple[int, int, int]] = field(default_factory=list)
    """Lanes and the free numbers that are left in the bucket that they fill: from, to."""
    placed: list[tuple[int, int, int]] = field(default_factory=list)
    """Lanes and the numbers that now wait in them: from, to."""
    taken: list[tuple[int, int]] = field(default_factory=list)
    """Lanes and how many numbers at their front no longer wait."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """Buckets and the earliest end of a lease in them; 0: none is in flight there."""
    alive: list[tuple[int, int]] = field(default_factory=list)
    """Buckets and by how much the number of their messages that are not done changes."""
    paid_until_ms: float | None = None
    """Until when the claims so far have used up the queue's rate."""
    skipped: list[tuple[int, int, int]] = field(default_factory=list)
    """Logs and offsets, from and to, of records that cannot be read and were passed over."""
    letters: int = 0
    """By how much the number of dead letters changes that are still to be written."""


class Advanced(Struct, array_like=True, frozen=True, tag=4):
    """Messages are done, and the next ones in lane 0, all in one bucket, were claimed."""

    at_ms: int
    done: list[tuple[int, int, bool]]
    """Buckets, how many of their messages are done, and whether others are still in flight."""
    claimed: int
    claimed_in: int
    until_ms: int


class Paused(Struct, array_like=True, frozen=True, tag=3):
    """Claims are held back, or no longer."""

    paused: bool


class QueueSetBack(Struct, array_like=True, frozen=True, tag=5):
    """The end of a log was set aside, and the queue goes back to where it begins."""

    log_id: int
    position: int
    aside_id: int
    aside_end: int
    """The end of the log that has the tail now, if the queue holds finished messages of it; or -1."""
    lanes: list[tuple[int, int, int]]
    """Lanes and the numbers that no longer wait in them: from, to."""
    withdrawn: int
    """Messages that the queue had not finished."""


class Arrived(Struct, array_like=True, frozen=True, tag=6):
    """Messages of one log were placed in lane 0, all in one bucket."""

    at_ms: int
    log_id: int
    position: int
    """Up to where the log is routed now."""
    first: int
    """The claim number of the first."""
    count: int


class CaughtUp(Struct, array_like=True, frozen=True, tag=7):
    """Messages are done; others of one log were placed in lane 0, all in one bucket, which nothing
    waited in, and the first of them were claimed."""

    at_ms: int
    done: list[tuple[int, int, bool]]
    """As in `Advanced`."""
    claimed: int
    until_ms: int
    log_id: int
    position: int
    """Up to where the log is routed now."""
    first: int
    """The claim number of the first."""
    count: int


Change = Specified | Moved | Paused | Advanced | QueueSetBack | Arrived | CaughtUp
"""What can happen to a queue."""
