"""The values that rooms hand out and take: messages, retained values, presence, instances."""

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
    """JSON for the listeners."""
    key: str | None = None
    deleted: bool = False
    """Whether to delete the retained value of the type and key; `data` is then ignored."""


class RetainedValue(Struct, frozen=True, kw_only=True):
    """The latest message of a type and key."""

    type: str
    key: str | None = None
    offset: int
    sender: str = ""
    timestamp: int
    """When the message was sent: milliseconds since the epoch."""
    data: bytes
    """JSON."""

    def json(self) -> Any:
        """Return the decoded data."""
        return msgspec.json.decode(self.data)


class RetainedValues(Struct, frozen=True, kw_only=True):
    """The retained values of a room as of an offset: messages from the offset on are newer."""

    offset: int
    values: list[RetainedValue]
    """In the order of types and keys."""


class Present(Struct, frozen=True, kw_only=True):
    """A user who is in a room."""

    user: str
    since_ms: int
    """When the user's first connection came: milliseconds since the epoch."""
    connections: int
    """The number of connections; 0 for a few seconds after the last connection was lost."""
    state_json: bytes = b""
    """The state that the user has set last, as a JSON object; empty without a state."""

    @property
    def state(self) -> dict[str, Any]:
        """Return the state that the user has set last, such as `{"typing": True}`."""
        state: dict[str, Any] = msgspec.json.decode(self.state_json or b"{}")
        return state


class PresenceList(Struct, frozen=True, kw_only=True):
    """The users in a room as of an offset: messages from the offset on are newer."""

    offset: int
    users: list[Present]
    """In the order of names."""


class RoomInfo(Struct, frozen=True, kw_only=True):
    """The state of a room."""

    name: str
    settings: RoomSettings
    start_offset: int
    end_offset: int
    bytes: int
    created: datetime
    timestamp: int
    """When the last message was sent: milliseconds since the epoch."""
    retained: int
    """The number of retained values."""
    retained_bytes: int
    users: int
    connections: int

    def __len__(self) -> int:
        """Return the number of messages that can be read again."""
        return self.end_offset - self.start_offset


class RoomLook(Struct, frozen=True, kw_only=True):
    """The contents of a room for a joiner, as of a commit: messages from `offset` on are newer."""

    settings: RoomSettings
    start: int
    offset: int
    """The end of the room's log."""
    generation: int
    """How often a client has resumed in the room."""
    retained: list[RetainedValue]
    """The first retained values, in the order of types and keys."""
    users: int
    """The number of users in the room."""
    presence: list[Present]
    """The first users, in the order of names."""
    log_id: int = 0
    more_after: bytes = b""
    """The stored key of the last listed value (for `ReadRetained`); empty if `retained` is
    complete."""


class RetainedSome(Struct, frozen=True, kw_only=True):
    """A page of a room's retained values, in the order of types and keys."""

    values: list[RetainedValue]
    more_after: bytes = b""
    """The stored key of the last listed value; empty on the last page."""


class Joined(Struct, frozen=True, kw_only=True):
    """The answer to a connection that has joined, as of its commit."""

    settings: RoomSettings
    start: int
    offset: int
    """The end of the room's log, behind the message `joined` if there is one."""
    is_first: bool
    """Whether the user is new in the room: then a message of type `joined` was sent."""


class Sent(Struct, frozen=True):
    """The position of stored messages."""

    offset: int
    """The offset of the first message."""
    timestamp: int
    """The time of all messages: milliseconds since the epoch."""


class Leaving(Struct, frozen=True):
    """A connection that has ended."""

    room: str
    user: str
    connection: str


class Watermark(Struct, frozen=True):
    """The progress of an instance in a room: messages before the offset were delivered."""

    room: str
    offset: int


class InstanceTaken(Struct, frozen=True, kw_only=True):
    """The right to be an instance, until the lease ends."""

    name: str
    generation: int
    """Grows with every holder; operations of earlier holders are refused."""
    lease_ms: int
    """The duration of the lease without a renewal."""
    is_new: bool
    """Whether the name is used for the first time."""


class InstanceInfo(Struct, frozen=True, kw_only=True):
    """The state of an instance."""

    name: str
    holder: str
    """The process that holds the name; empty for a free name."""
    generation: int
    is_alive: bool
    seen: int
    """When the name was last taken, renewed or freed: milliseconds since the epoch."""
    is_silent: bool = False
    """Whether the lease has ended without a stop: the process hangs, or its machine is gone."""


class NounTicket(Struct, frozen=True, kw_only=True):
    """A short-lived right of a browser to use a log or a queue."""

    ticket: str
    permission: str
    """The single permission of the ticket, such as `queue:put:mail`."""
    expires: int
    """Milliseconds since the epoch."""


class RoomTicket(Struct, frozen=True, kw_only=True):
    """A short-lived right of a browser to enter a room as a user."""

    ticket: str
    room: str
    user: str
    can: str
    """`read` or `write`."""
    expires: int
    """Milliseconds since the epoch."""
