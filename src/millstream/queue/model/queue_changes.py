"""The changes of a queue: every change is a value, stored in the delta of a commit."""

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
    """Lanes with the free numbers that remain in the bucket they fill: from, to."""
    placed: list[tuple[int, int, int]] = field(default_factory=list)
    """Lanes with the numbers that now wait in them: from, to."""
    lane_advances: list[tuple[int, int]] = field(default_factory=list)
    """Lanes with the count of numbers at their front that no longer wait."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """Buckets with the earliest lease end in each; 0 if no message is in flight."""
    alive: list[tuple[int, int]] = field(default_factory=list)
    """Buckets with the difference in their number of unfinished messages."""
    paid_until_ms: float | None = None
    """The time until which claims have used up the queue's rate."""
    skipped: list[tuple[int, int, int]] = field(default_factory=list)
    """Logs and offsets (from, to) of unreadable records that routing skipped."""
    letters: int = 0
    """The difference in the number of dead letters still to be written."""


class Advanced(Struct, array_like=True, frozen=True, tag=4, gc=False):
    """Messages are done, and the next ones in lane 0, all in one bucket, were claimed."""

    at_ms: int
    done: list[tuple[int, int, bool]]
    """Buckets, the number of messages done, and whether more messages are in flight."""
    claimed: int
    claimed_in: int
    until_ms: int


class Paused(Struct, array_like=True, frozen=True, tag=3):
    """Claims were paused or resumed."""

    paused: bool


class SourceReplaced(Struct, array_like=True, frozen=True, tag=5):
    """A log was set aside from an offset on, and the queue goes on in the log that took its name."""

    log_id: int
    at: int
    end: int
    """The end of the log, if the queue holds finished messages from `at` on; else -1."""
    new_id: int
    position: int
    """The routing position in the new log."""
    goes_back: bool
    """Whether the queue had routed records from `at` on."""
    lanes: list[tuple[int, int, int]]
    """Lanes with the numbers that no longer wait in them: from, to."""
    withdrawn: int
    """The number of unfinished messages from `at` on."""


class Arrived(Struct, array_like=True, frozen=True, tag=6, gc=False):
    """Messages of a single log were placed in lane 0, in a single bucket."""

    at_ms: int
    log_id: int
    position: int
    """The offset up to which the log is routed."""
    first: int
    """The claim number of the first message."""
    count: int


class ArrivedAndClaimed(Struct, array_like=True, frozen=True, tag=7, gc=False):
    """Messages are done; new messages of a log were placed in a bucket of the empty lane 0, and the
    first of them were claimed.
    """

    at_ms: int
    done: list[tuple[int, int, bool]]
    """As in `Advanced`."""
    claimed: int
    until_ms: int
    log_id: int
    position: int
    """The offset up to which the log is routed."""
    first: int
    """The claim number of the first new message."""
    count: int


class Unlisted(Struct, array_like=True, frozen=True, tag=8):
    """Messages were cancelled; messages that waited in lanes no longer wait there."""

    cancelled: int
    """The number of cancelled messages."""
    lanes: list[tuple[int, int, int]]
    """Lanes with the numbers that no longer wait in them: from, to."""


Change = (
    Specified | Moved | Paused | Advanced | SourceReplaced | Arrived | ArrivedAndClaimed | Unlisted
)
"""Every change of a queue."""
