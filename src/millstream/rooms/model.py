"""The values that rooms hand out and take: messages, retained values, who is there, instances."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from millstream.rooms.settings import RoomSettings


class RoomMessage(Struct, frozen=True, gc=False):
    """A message on its way into a room."""

    type: str
    data: bytes = b"null"
    """JSON, as it is to be delivered."""
    key: str | None = None
    deleted: bool = False
    """Whether the retained value of the type and key is to be forgotten; `data` does not count."""


class RetainedValue(Struct, frozen=True, kw_only=True):
    """The latest message of a type and key."""

    type: str
    key: str | None = None
    offset: int
    sender: str = ""
    timestamp: int
    """When it was sent: milliseconds since the epoch."""
    data: bytes
    """JSON."""

    def json(self) -> Any:
        """The data, decoded."""
        return msgspec.json.decode(self.data)


class RetainedValues(Struct, frozen=True, kw_only=True):
    """What a room has kept, as of an offset: messages from there on come after it."""

    offset: int
    values: list[RetainedValue]
    """In the order of types and keys."""


class Present(Struct, frozen=True, kw_only=True):
    """A user who is in a room."""

    user: str
    since_ms: int
    """When the first of the user's connections came: milliseconds since the epoch."""
    connections: int
    """How many there are now; 0 for a few seconds after the last one was lost."""


class PresenceList(Struct, frozen=True, kw_only=True):
    """The users in a room, as of an offset: what messages from there on tell comes after it."""

    offset: int
    users: list[Present]
    """In the order of names."""


class RoomInfo(Struct, frozen=True, kw_only=True):
    """How a room stands."""

    name: str
    settings: RoomSettings
    start_offset: int
    end_offset: int
    bytes: int
    created: datetime
    timestamp: int
    """When something was sent last: milliseconds since the epoch."""
    retained: int
    """How many values are kept."""
    retained_bytes: int
    users: int
    connections: int

    def __len__(self) -> int:
        """Messages that can be read again."""
        return self.end_offset - self.start_offset


class RoomLook(Struct, frozen=True, kw_only=True):
    """Everything that a joiner is told, as of one commit: messages from `offset` on come after it."""

    settings: RoomSettings
    start: int
    offset: int
    """The end of the room's log."""
    setbacks: int
    generation: int
    """How often a client came back to the room."""
    retained: list[RetainedValue]
    """The first of them, in the order of types and keys."""
    users: int
    """How many users are there."""
    presence: list[Present]
    """The first of them, in the order of names."""
    log_id: int = 0
    more_after: bytes = b""
    """The stored key behind which more is retained (`ReadRetained`); empty: `retained` is all."""


class RetainedSome(Struct, frozen=True, kw_only=True):
    """Some of what a room retains, in the order of types and keys."""

    values: list[RetainedValue]
    more_after: bytes = b""
    """The stored key behind which more is retained; empty: these were the last."""


class Joined(Struct, frozen=True, kw_only=True):
    """The answer to a connection that has joined, as of the commit by which it did."""

    settings: RoomSettings
    start: int
    offset: int
    """The end of the room's log, behind the message that tells of the join if there is one."""
    is_first: bool
    """Whether the user was not there before: a message of type `joined` was sent."""


class Sent(Struct, frozen=True):
    """Messages that were stored."""

    offset: int
    """Of the first."""
    timestamp: int
    """Which all of them carry: milliseconds since the epoch."""


class Leaving(Struct, frozen=True):
    """A connection that has ended."""

    room: str
    user: str
    connection: str


class Watermark(Struct, frozen=True):
    """How far an instance has come in a room: everything before the offset was delivered."""

    room: str
    offset: int


class InstanceTaken(Struct, frozen=True, kw_only=True):
    """The right to be an instance, until the lease ends."""

    name: str
    generation: int
    """Grows with every holder; what is done for an earlier one is refused."""
    lease_ms: int
    """How long it holds unless it is renewed."""
    is_new: bool
    """Whether nobody had the name before."""


class InstanceInfo(Struct, frozen=True, kw_only=True):
    """How an instance stands."""

    name: str
    holder: str
    """The process that holds the name; empty if none does."""
    generation: int
    is_alive: bool
    seen: int
    """When it was taken, renewed or freed last: milliseconds since the epoch."""
    is_silent: bool = False
    """Whether its lease has ended though it did not stop: it hangs, or its machine is gone."""


class RoomTicket(Struct, frozen=True, kw_only=True):
    """A short-lived right for a browser to enter one room as one user."""

    ticket: str
    room: str
    user: str
    can: str
    """`read` or `write`."""
    expires: int
    """Milliseconds since the epoch."""
