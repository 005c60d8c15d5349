"""What can happen to a bucket: each change is a value, kept in the delta of its commit."""

from __future__ import annotations

from msgspec import Struct

from millstream.queue.model.slots import Slots, Span, Trial

SlotMark = tuple[int, str]
"""The priority and the group of the message in a slot."""


class Placed(Struct, array_like=True, frozen=True, tag=1):
    """Messages were routed here; they are available."""

    spans: list[Span]
    lane: int = 0
    marks: dict[int, SlotMark] = {}
    """Slots and their marks, where messages of several priorities or groups share a bucket."""
    past: dict[int, list[Trial]] = {}
    """Slots and the attempts before: of messages that had failed and are driven again."""
    dues: dict[int, int] = {}
    """Slots and when their messages are due, where these wait in a lane all the same."""
    delays: list[tuple[int, int, int]] = []
    """Ranges of slots and from when on their messages can be claimed, where that is not when they were
    appended: (first slot, end, store time). The age of what waits counts from it."""


class Claimed(Struct, array_like=True, frozen=True, tag=2):
    """Slots were claimed by a consumer, until then."""

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


class Strode(Struct, array_like=True, frozen=True, tag=6):
    """Some slots are done, and others were claimed for the first time: a stride of a worker."""

    done: list[Slots]
    claimed: list[Slots]
    """Neighbours, in order: one range for each claim."""
    at_ms: int
    until_ms: int
    consumer: str


class Forgot(Struct, array_like=True, frozen=True, tag=7):
    """What was done at that time or before is forgotten."""

    through_ms: int


class Withdrawn(Struct, array_like=True, frozen=True, tag=8):
    """A log's messages from an offset on moved to a fork: unfinished ones are gone."""

    log_id: int
    at: int
    to_id: int


class Filled(Struct, array_like=True, frozen=True, tag=9):
    """Messages came to a bucket of lane 0, and are available: nothing but numbers is known of them."""

    spans: list[Span]


class Caught(Struct, array_like=True, frozen=True, tag=10):
    """Messages came to a bucket of lane 0, and the first of them were claimed; others are done."""

    spans: list[Span]
    done: list[Slots]
    claimed: Slots
    at_ms: int
    until_ms: int
    consumer: str


Change = (
    Placed | Claimed | Ended | Renewed | Removed | Strode | Forgot | Withdrawn | Filled | Caught
)
"""What can happen to a bucket."""
