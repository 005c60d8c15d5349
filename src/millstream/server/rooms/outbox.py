"""The outbox of a slow listener: its waiting messages, in two lanes, bounded in bytes; pure.

Messages of priority types overtake normal messages. A message of a conflated type replaces an
earlier waiting message of the same type and sender. Each lane is ordered by offset. Every piece
carries the lowest waiting offset: from there the client resumes if its connection breaks. Messages
that overtook that offset are sent again in this case.

If the outbox exceeds its bytes, all waiting messages are dropped and the outbox is `overflown`: the
listener has a gap that starts at `gap_from`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec import Struct

MESSAGE_BYTES = 100
"""About how many bytes a waiting message takes besides its text."""


class Shown(Struct, frozen=True, gc=False):
    """A message as listeners get it, and the fields that decide about its delivery."""

    offset: int
    type: str
    origin: str
    """The client that sent the message; its user, if the client is unknown."""
    json: bytes


class OutboxPiece(NamedTuple):
    """Messages to send together, and the offset from which to resume after them."""

    messages: list[Shown]
    offset: int


class RoomOutbox:
    """The waiting messages of one listener."""

    def __init__(
        self, bytes_max: int, *, conflated: Collection[str], priority: Collection[str]
    ) -> None:
        self.bytes = 0
        """Bytes of the waiting messages."""
        self.gap_from: int | None = None
        """The first dropped offset; None if no message was dropped."""
        self._bytes_max = bytes_max
        self._conflated = conflated
        self._priority = priority
        self._ahead: dict[int, Shown] = {}
        self._normal: dict[int, Shown] = {}
        self._latest: dict[tuple[str, str], int] = {}
        self._stop = 0

    def __bool__(self) -> bool:
        return bool(self._ahead or self._normal)

    @property
    def held_bytes(self) -> int:
        """About how many bytes of memory the waiting messages hold."""
        return self.bytes + MESSAGE_BYTES * (len(self._ahead) + len(self._normal))

    def overflow(self) -> None:
        """Drop all waiting messages: the listener has a gap."""
        self.gap_from = self._lowest()
        self._ahead, self._normal, self._latest, self.bytes = {}, {}, {}, 0

    @property
    def overflown(self) -> bool:
        """Whether messages were dropped."""
        return self.gap_from is not None

    def put(self, messages: Iterable[Shown], stop: int) -> None:
        """Add messages. `stop` is the end of their delivery, including messages of other types."""
        self._stop = stop
        for message in messages:
            if self.gap_from is not None:
                break
            self._add(message)

    def take(self, bytes_max: int) -> OutboxPiece:
        """Remove and return the next messages: at least one if any waits, and as many as fit."""
        messages: list[Shown] = []
        size = 0
        for lane in (self._ahead, self._normal):
            while lane:
                offset, message = next(iter(lane.items()))
                if messages and size + len(message.json) > bytes_max:
                    return OutboxPiece(messages, self._lowest())
                del lane[offset]
                size += len(message.json)
                self._forget(message)
                messages.append(message)
        return OutboxPiece(messages, self._lowest())

    def _add(self, message: Shown) -> None:
        lane = self._ahead if message.type in self._priority else self._normal
        if message.type in self._conflated:
            replaced = lane.pop(self._latest.get((message.type, message.origin), -1), None)
            if replaced is not None:
                self.bytes -= len(replaced.json)
            self._latest[message.type, message.origin] = message.offset
        self.bytes += len(message.json)
        lane[message.offset] = message
        if self.bytes > self._bytes_max:
            self.overflow()

    def _forget(self, message: Shown) -> None:
        self.bytes -= len(message.json)
        if self._latest.get((message.type, message.origin)) == message.offset:
            del self._latest[message.type, message.origin]

    def _lowest(self) -> int:
        """Return the lowest waiting offset; the offset of the next message if none waits."""
        return min(
            [self._stop, *[next(iter(lane)) for lane in (self._ahead, self._normal) if lane]]
        )
