"""Pushed messages: each message of a delivery is encoded once, each text once per set of messages.

Most listeners get all messages of a delivery, as the same bytes. A listener that sent some of the
messages, or listens to some types only, gets a text without the others. Each kind of listener frames
the text: a WebSocket frame is made once for all sockets, a server-sent event also gets an id.
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


class PushedText:
    """A text for many listeners, with its WebSocket frame, which is made once when first needed."""

    __slots__ = ("_frame", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._frame = b""

    @property
    def frame(self) -> bytes:
        """The text as one unmasked WebSocket frame."""
        if not self._frame:
            self._frame = on_socket(self.text)
        return self._frame


class PushedMessages:
    """The messages of one delivery, and the texts made of them."""

    __slots__ = ("_senders", "_texts", "all_text", "messages", "origins", "stop")

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
        self.all_text = self._text(self.messages)
        """The text with all messages; None without messages."""
        self._texts: dict[tuple[Collection[str] | None, str], PushedText | None] = {}

    def _text(self, messages: list[Shown]) -> PushedText | None:
        return PushedText(messages_frame(messages, self.stop)) if messages else None

    def text(self, types: frozenset[str] | None, client: str) -> PushedText | None:
        """Return the text for a client that listens to `types`; None without messages."""
        sender = client if client in self.origins else ""
        if types is None and not sender:
            return self.all_text
        key = types, sender
        if key not in self._texts:
            self._texts[key] = self._text(self.some(types, sender))
        return self._texts[key]

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
