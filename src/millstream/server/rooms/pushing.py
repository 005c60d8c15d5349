"""Pushed messages: each message of a delivery is encoded once, each frame once per set of messages.

Most listeners get all messages of a delivery, as the same bytes. A listener that sent some of the
messages, or listens to some types only, gets a frame without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from millstream.embedded.loop.feed_reads import Delivery
from millstream.record import Record
from millstream.rooms.names import RESERVED_TYPES
from millstream.server.rooms.frames import (
    messages_frame,
    number_of,
    on_socket,
    origin_of,
    shown,
)
from millstream.server.rooms.outbox import Shown

_KEY = "pushed"

Relays = Callable[[Record], bool]
"""Whether the listeners of this process get a record."""


class PushedMessages:
    """The messages of one delivery, and the frames made of them."""

    __slots__ = ("_frames", "_senders", "messages", "origins", "stop", "whole")

    def __init__(self, delivery: Delivery, relays: Relays | None = None) -> None:
        records = delivery.records
        if relays is not None:
            records = [record for record in records if relays(record)]
        self.messages = [shown(record) for record in records]
        self.stop = delivery.stop
        self._senders = [origin_of(record) for record in records]
        self.origins: dict[str, dict[int, int]] = {}
        """The clients that sent messages of the delivery: frame numbers, and the first offset of
        each."""
        for record, origin in zip(records, self._senders, strict=True):
            if origin:
                numbers = self.origins.setdefault(origin, {})
                if (number := number_of(record)) is not None:
                    numbers.setdefault(number, record.offset)
        self.whole = on_socket(messages_frame(self.messages, self.stop)) if records else b""
        """The frame with all messages; empty without messages."""
        self._frames: dict[tuple[Collection[str] | None, str], bytes] = {}

    def frame(self, types: frozenset[str] | None, client: str) -> bytes:
        """Return the frame for a client that listens to `types`; empty if no message is left."""
        sender = client if client in self.origins else ""
        if types is None and not sender:
            return self.whole
        frame = self._frames.get((types, sender))
        if frame is None:
            messages = self.some(types, sender)
            frame = on_socket(messages_frame(messages, self.stop)) if messages else b""
            self._frames[types, sender] = frame
        return frame

    def some(self, types: frozenset[str] | None, client: str) -> list[Shown]:
        """Return the messages for a client: of its types, and without its own messages.

        Every client gets the messages about presence.
        """
        return [
            message
            for message, sender in zip(self.messages, self._senders, strict=True)
            if (not client or sender != client)
            and (types is None or message.type in types or message.type in RESERVED_TYPES)
        ]


def pushed(delivery: Delivery, relays: Relays | None = None) -> PushedMessages:
    """Return the pushed messages of a delivery; the first listener makes them for all."""
    messages: PushedMessages | None = delivery.shared.get(_KEY)
    if messages is None:
        messages = delivery.shared[_KEY] = PushedMessages(delivery, relays)
    return messages
