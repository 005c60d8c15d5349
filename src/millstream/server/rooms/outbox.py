"""The outbox of a slow listener: what waits for it, in two lanes, bounded in bytes; pure.

Messages of priority types overtake the others. A message of a conflated type takes the place of an
earlier one of the same type and sender that still waits. Within a lane the order of offsets holds.
With every piece goes the offset from which the listener would have to go on if its connection broke
then: the lowest that waits. What has overtaken it comes a second time in that case.

If too much waits, everything that waits is dropped, and the outbox is `overflown`: the listener has
a gap, from `gap_from` on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec import Struct

MESSAGE_BYTES = 100
"""About what a message that waits takes besides its text."""


class Shown(Struct, frozen=True, gc=False):
    """A message as listeners get it, and what decides about its way."""

    offset: int
    type: str
    origin: str
    """The client that sent it, or else the user."""
    json: bytes


class OutboxPiece(NamedTuple):
    """Messages that may be sent together, and the offset to go on from behind them."""

    messages: list[Shown]
    offset: int


class RoomOutbox:
    """What waits for one listener."""

    def __init__(
        self, bytes_max: int, *, conflated: Collection[str], priority: Collection[str]
    ) -> None:
        self.bytes = 0
        """How much waits."""
        self.gap_from: int | None = None
        """The first offset that was dropped; None if nothing was."""
        self._bytes_max = bytes_max
        self._conflated = conflated
        self._priority = priority
        self._ahead: dict[int, Shown] = {}
        self._others: dict[int, Shown] = {}
        self._latest: dict[tuple[str, str], int] = {}
        self._stop = 0

    def __bool__(self) -> bool:
        return bool(self._ahead or self._others)

    @property
    def held_bytes(self) -> int:
        """About how much memory is held for what waits."""
        return self.bytes + MESSAGE_BYTES * (len(self._ahead) + len(self._others))

    def overflow(self) -> None:
        """Drop everything that waits: the listener has a gap."""
        self.gap_from = self._lowest()
        self._ahead, self._others, self._latest, self.bytes = {}, {}, {}, 0

    @property
    def overflown(self) -> bool:
        """Whether something was dropped."""
        return self.gap_from is not None

    def put(self, messages: Iterable[Shown], stop: int) -> None:
        """Let messages wait; they, and what this listener does not get, end before `stop`."""
        self._stop = stop
        for one in messages:
            if self.gap_from is not None:
                break
            self._add(one)

    def take(self, bytes_max: int) -> OutboxPiece:
        """What is sent next: at least one message, if any waits, and then as many as fit."""
        found: list[Shown] = []
        size = 0
        for lane in (self._ahead, self._others):
            while lane:
                offset, one = next(iter(lane.items()))
                if found and size + len(one.json) > bytes_max:
                    return OutboxPiece(found, self._lowest())
                del lane[offset]
                size += len(one.json)
                self._forget(one)
                found.append(one)
        return OutboxPiece(found, self._lowest())

    def _add(self, one: Shown) -> None:
        lane = self._ahead if one.type in self._priority else self._others
        if one.type in self._conflated:
            before = lane.pop(self._latest.get((one.type, one.origin), -1), None)
            if before is not None:
                self.bytes -= len(before.json)
            self._latest[one.type, one.origin] = one.offset
        self.bytes += len(one.json)
        lane[one.offset] = one
        if self.bytes > self._bytes_max:
            self.overflow()

    def _forget(self, one: Shown) -> None:
        self.bytes -= len(one.json)
        if self._latest.get((one.type, one.origin)) == one.offset:
            del self._latest[one.type, one.origin]

    def _lowest(self) -> int:
        """The first offset that waits; if none does, where the next message will be."""
        return min(
            [self._stop, *[next(iter(lane)) for lane in (self._ahead, self._others) if lane]]
        )
