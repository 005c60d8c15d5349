"""The changes of a bucket: every change is a value, stored in the delta of a commit."""

from __future__ import annotations

from msgspec import Struct

from millstream.queue.model.slots import Slots, Span, Trial

SlotMark = tuple[int, str]
"""The priority and the group of the message in a slot."""


class Placed(Struct, array_like=True, frozen=True, tag=1):
    """Messages were placed in this bucket; they are available."""

    spans: list[Span]
    lane: int = 0
    marks: dict[int, SlotMark] = {}
    """Slots and their marks, where messages of several priorities or groups share a bucket."""
    past: dict[int, list[Trial]] = {}
    """Slots → earlier attempts, for failed messages that were redriven."""
    dues: dict[int, int] = {}
    """Slots → due times, for messages that wait in a lane until they are due."""
    delays: list[tuple[int, int, int]] = []
    """Ranges of slots whose messages become claimable later than their append: (first slot, end,
    store time). The age of a waiting message counts from this time.
    """


class Claimed(Struct, array_like=True, frozen=True, tag=2):
    """A consumer claimed slots, until `until_ms`."""

    ranges: list[Slots]
    at_ms: int
    until_ms: int
    consumer: str


class Ended(Struct, array_like=True, frozen=True, tag=3):
    """An attempt ended: done, failed, or available again (from `due_ms` on)."""

    ranges: list[Slots]
    at_ms: int
    state: int
    due_ms: int = 0
    reason: str = ""


class Renewed(Struct, array_like=True, frozen=True, tag=4):
    """Leases were prolonged."""

    ranges: list[Slots]
    until_ms: int


class Removed(Struct, array_like=True, frozen=True, tag=5):
    """Slots are let go: purged, redriven, or past their retention."""

    ranges: list[Slots]


class Strode(Struct, array_like=True, frozen=True, tag=6, gc=False):
    """Some slots are done, and further slots were claimed for the first time: a stride of a worker."""

    done: list[Slots]
    claimed: list[Slots]
    """Adjacent ranges in order, a range per claim."""
    at_ms: int
    until_ms: int
    consumer: str


class Forgot(Struct, array_like=True, frozen=True, tag=7):
    """Messages done at or before `through_ms` are forgotten."""

    through_ms: int


class Withdrawn(Struct, array_like=True, frozen=True, tag=8):
    """A log was set aside from an offset on: unfinished messages of these records are removed, and
    messages of earlier records belong to the log that took the name.
    """

    log_id: int
    at: int
    new_id: int


class Filled(Struct, array_like=True, frozen=True, tag=9, gc=False):
    """Messages without marks came to a bucket of lane 0 and are available."""

    spans: list[Span]


class FilledAndClaimed(Struct, array_like=True, frozen=True, tag=10, gc=False):
    """Messages came to a bucket of lane 0 and the first of them were claimed; earlier slots are
    done.
    """

    spans: list[Span]
    done: list[Slots]
    claimed: Slots
    at_ms: int
    until_ms: int
    consumer: str


class Cancelled(Struct, array_like=True, frozen=True, tag=11):
    """Messages that waited were cancelled, at `at_ms`."""

    ranges: list[Slots]
    at_ms: int


Change = (
    Placed
    | Claimed
    | Ended
    | Renewed
    | Removed
    | Strode
    | Forgot
    | Withdrawn
    | Filled
    | FilledAndClaimed
    | Cancelled
)
"""Every change of a bucket."""
