"""Slots: the values that describe ranges of messages in a bucket."""

from __future__ import annotations

from msgspec import Struct

Slots = tuple[int, int]
"""A half-open range of slots."""

NO_SLOTS: Slots = (0, 0)

NONE, AVAILABLE, IN_FLIGHT, DONE, FAILED, GONE, FORGOTTEN, CANCELLED = range(8)
"""The state of a slot's message. A forgotten message was done; only a repeated acknowledgement
still reads its slot. A cancelled message is remembered as long as a done message, and then gone.
"""

NOT_THERE = (NONE, GONE, FORGOTTEN)
"""States of a slot without a message: the message has left, or was never placed."""

FILL = [bytes((state,)) for state in range(8)]


class Span(Struct, array_like=True, frozen=True, gc=False):
    """Neighbouring slots whose messages are neighbours in a log, with adjacent ids."""

    slot: int
    count: int
    log_id: int
    offset: int
    message_id: int
    at_ms: int = 0
    """When the messages were appended."""

    def cut(self, skip: int, count: int, slot: int = 0) -> Span:
        """Return `count` messages behind the first `skip`, placed at `slot`."""
        offset, message_id = self.offset + skip, self.message_id + skip
        return Span(slot, count, self.log_id, offset, message_id, self.at_ms)

    def grown(self, count: int) -> Span:
        """Return the span with `count` further messages at its end."""
        return Span(
            self.slot, self.count + count, self.log_id, self.offset, self.message_id, self.at_ms
        )


Stretch = tuple[int, int, int, int]
"""Neighbouring slots whose messages are neighbours in a log, with any ids: the first slot, the
number of slots, the log id, and the offset of the first message.
"""


class RoutingMark(Struct, array_like=True, frozen=True, gc=False):
    """The routing mark of a message: its priority, group, due time and dedup digest."""

    priority: int = 0
    group: str = ""
    delay_ms: int | None = None
    """The time from the append until the message is due."""
    due_ms: int | None = None
    """The wall time at which the message is due."""
    digest: bytes = b""
    """The digest by which deduplication recognises a repeat."""


class ClaimedSlots(Struct, array_like=True, frozen=True, gc=False):
    """Slots that were claimed together."""

    start: int
    stop: int
    at_ms: int
    consumer: str


class Trial(Struct, array_like=True, frozen=True, gc=False):
    """One attempt at a message: the consumer, begin and end, and the outcome."""

    at_ms: int
    consumer: str
    ended_ms: int | None = None
    """None while the attempt lasts."""
    state: int = IN_FLIGHT
    """The state that the message went to."""
    reason: str = ""


class End(Struct, array_like=True, frozen=True, gc=False):
    """Slots whose attempts ended together, the state that followed, and the reason."""

    start: int
    stop: int
    at_ms: int
    state: int
    reason: str
