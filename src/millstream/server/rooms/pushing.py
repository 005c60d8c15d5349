"""What a delivery becomes: each message encoded once, and one frame for all who get the same.

Most listeners get every message of a delivery, as the same bytes. Listeners that sent some of it
themselves, or asked for some types only, get frames without the rest.
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
"""Whether a record is for the listeners of this process at all."""


class PushedMessages:
    """The messages of one delivery, and the frames that were made of them."""

    __slots__ = ("_frames", "_senders", "messages", "origins", "stop", "whole")

    def __init__(self, delivery: Delivery, relays: Relays | None = None) -> None:
        records = delivery.records
        if relays is not None:
            records = [record for record in records if relays(record)]
        self.messages = [shown(record) for record in records]
        self.stop = delivery.stop
        self._senders = [origin_of(record) for record in records]
        self.origins: dict[str, dict[int, int]] = {}
        """The clients that sent some of it: their numbers, and the first offset of each."""
        for record, origin in zip(records, self._senders, strict=True):
            if origin:
                numbers = self.origins.setdefault(origin, {})
                if (number := number_of(record)) is not None:
                    numbers.setdefault(number, record.offset)
        self.whole = on_socket(messages_frame(self.messages, self.stop)) if records else b""
        """The frame of a listener that gets everything; empty if there is nothing for it."""
        self._frames: dict[tuple[Collection[str] | None, str], bytes] = {}

    def frame(self, types: frozenset[str] | None, client: str) -> bytes:
        """The frame for a client that asked for some types; empty if there is nothing for it."""
        own = client if client in self.origins else ""
        if types is None and not own:
            return self.whole
        found = self._frames.get((types, own))
        if found is None:
            some = self.some(types, own)
            found = on_socket(messages_frame(some, self.stop)) if some else b""
            self._frames[types, own] = found
        return found

    def some(self, types: frozenset[str] | None, client: str) -> list[Shown]:
        """The messages that a client gets: of the types that it asked for, and none of its own.

        Who comes and goes is told to all of them.
        """
        return [
            one
            for one, sender in zip(self.messages, self._senders, strict=True)
            if (not client or sender != client)
            and (types is None or one.type in types or one.type in RESERVED_TYPES)
        ]


def pushed(delivery: Delivery, relays: Relays | None = None) -> PushedMessages:
    """What a delivery becomes; made once, by the listener that asks first."""
    found: PushedMessages | None = delivery.shared.get(_KEY)
    if found is None:
        found = delivery.shared[_KEY] = PushedMessages(delivery, relays)
    return found
