"""Slots: the values that describe ranges of messages in a bucket."""

from __future__ import annotations

from msgspec import Struct

Slots = tuple[int, int]
"""A half-open range of slots."""

NO_SLOTS: Slots = (0, 0)

NONE, AVAILABLE, IN_FLIGHT, DONE, FAILED, GONE, FORGOTTEN = range(7)
"""How the message of a slot stands. One that is forgotten was done: only an acknowledgement that is
repeated still finds it."""

NOT_THERE = (NONE, GONE, FORGOTTEN)
"""Of such a slot no message is there any more, or none yet."""

FILL = [bytes((state,)) for state in range(7)]


class Span(Struct, array_like=True, frozen=True, gc=False):
    """Neighbouring slots whose messages are neighbours in a log, with adjacent ids."""

    slot: int
    count: int
    log_id: int
    offset: int
    message_id: int
    at_ms: int = 0
    """When they were appended."""

    def cut(self, skip: int, count: int, slot: int = 0) -> Span:
        """So many of them behind the first few, at another slot."""
        offset, message_id = self.offset + skip, self.message_id + skip
        return Span(slot, count, self.log_id, offset, message_id, self.at_ms)


Stretch = tuple[int, int, int, int]
"""Neighbouring slots whose messages are neighbours in a log, whatever their ids: the first slot, how
many, the log id, and the offset of the first."""


class RoutingMark(Struct, array_like=True, frozen=True, gc=False):
    """A routing mark: what routing found out about one message besides that it matches."""

    priority: int = 0
    group: str = ""
    delay_ms: int | None = None
    """How long after it was appended it is due."""
    due_ms: int | None = None
    """The wall time at which it is due."""
    digest: bytes = b""
    """By which a repeat is known."""


class ClaimedSlots(Struct, array_like=True, frozen=True, gc=False):
    """Slots that were claimed together."""

    start: int
    stop: int
    at_ms: int
    consumer: str


class Trial(Struct, array_like=True, frozen=True, gc=False):
    """One attempt at one message: by whom, from when to when, and how it ended."""

    at_ms: int
    consumer: str
    ended_ms: int | None = None
    """None while it lasts."""
    state: int = IN_FLIGHT
    """The state that the message went to."""
    reason: str = ""


class End(Struct, array_like=True, frozen=True, gc=False):
    """Slots whose attempt ended together: which state they went to, and why."""

    start: int
    stop: int
    at_ms: int
    state: int
    reason: str
