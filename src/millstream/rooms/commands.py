"""The commands of rooms."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from millstream.command import Operation, Procedure, Read, Right, Traits, on_room, on_store
from millstream.rooms.frame_order import Turn
from millstream.rooms.model import (
    InstanceInfo,
    InstanceTaken,
    Joined,
    Leaving,
    NounTicket,
    PresenceList,
    RetainedSome,
    RetainedValues,
    RoomInfo,
    RoomLook,
    RoomMessage,
    RoomTicket,
    Sent,
    Watermark,
)
from millstream.rooms.settings import RoomSettings

LEASE_MS = 30_000
"""How long an instance counts as alive after its last renewal."""

PRESENCE_PER_COMMIT = 500
"""Connections that a commit deletes, or marks as ended."""


class SendToRoom(Operation[int], frozen=True):
    """Send messages to all listeners of a room, in one commit; return the offset of the first."""

    traits = Traits(needs=(on_room("write"),), is_step=True)

    room: str
    messages: list[RoomMessage]
    sender: str = ""
    """The sender that listeners are shown."""
    origin: str = ""
    """The sending client: it does not receive the messages itself."""
    number: int | None = None
    """The client's own number of this call, by which the client finds out whether it was carried
    out."""
    generation: int | None = None
    """The `generation` of its welcome: refused (`Fenced`) if the client has come back since."""


class Broadcast(Operation[Sent], frozen=True):
    """Send for a client of this process; also return the time that the messages carry.

    With the time, an instance can push the messages to its listeners without reading them back.
    """

    traits = Traits(needs="internal")

    send: SendToRoom
    turn: Turn | None = None
    """The frame's turn on its connection; None to store the frame independent of earlier frames."""


class SpecifyRoom(Operation[None], frozen=True):
    """Change the settings of a room; with `expect` only if its settings are still those."""

    traits = Traits(needs=(on_room("admin"),), is_step=True)

    room: str
    settings: RoomSettings
    expect: RoomSettings | None = None


class DeleteRoom(Operation[bool], frozen=True):
    """Delete a room, its messages and its retained values; False if the room does not exist."""

    traits = Traits(needs=(on_room("admin"),), is_step=True, tidies=True)

    room: str


class DescribeRoom(Read[RoomInfo | None], frozen=True):
    """Describe a room; None if the room does not exist."""

    traits = Traits(needs=(on_room("read"),))

    room: str


class ListRooms(Read[list[RoomInfo]], frozen=True):
    """List rooms in the order of their names, after a name, up to a limit."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int


class GetRetained(Read[RetainedValues], frozen=True):
    """Return the retained values of a room, of all or some types, and the end of its log."""

    traits = Traits(needs=(on_room("read"),), is_large=True)

    room: str
    types: list[str] | None = None


class FindHistory(Read[int], frozen=True):
    """Return the offset from which the last messages of a room follow, of all or some types."""

    traits = Traits(needs=(on_room("read"),))

    room: str
    count: int
    types: list[str] | None = None


class GetPresence(Read[PresenceList], frozen=True):
    """Return the users in a room, and the end of its log."""

    traits = Traits(needs=(on_room("read"),))

    room: str


class MintTicket(Procedure[RoomTicket], frozen=True):
    """Make a short-lived ticket by which a browser enters a room as a user."""

    traits = Traits(needs=(on_room("read"), Right("room", "write", "room", when=("can", "write"))))

    room: str
    user: str
    can: Literal["read", "write"] = "write"
    seconds: float = 60.0


BrowserRight = Literal["log:read", "log:write", "queue:read", "queue:put", "queue:write"]
"""What a ticket for a log or a queue allows."""


class MintBrowserTicket(Procedure[NounTicket], frozen=True):
    """Make a short-lived ticket by which a browser uses one log or one queue."""

    traits = Traits(
        needs=(
            Right("log", "read", "name", when=("right", "log:read")),
            Right("log", "write", "name", when=("right", "log:write")),
            Right("queue", "read", "name", when=("right", "queue:read")),
            Right("queue", "put", "name", when=("right", "queue:put")),
            Right("queue", "write", "name", when=("right", "queue:write")),
        ),
        names=("name",),
    )

    name: str
    right: BrowserRight
    seconds: float = 60.0


class LookIntoRoom(Read[RoomLook], frozen=True):
    """Return the contents of a room for a joiner, as of a commit."""

    traits = Traits(needs="internal")

    room: str
    types: list[str] | None = None


class ReadRetained(Read[RetainedSome], frozen=True):
    """Return further retained values of a room; nothing if the room was replaced."""

    traits = Traits(needs="internal")

    room: str
    types: list[str] | None
    log_id: int
    after: bytes
    """The stored key after which to continue."""


class ResumeInRoom(Operation[int], frozen=True):
    """Note that a client is back, before its stored frames are looked up.

    Returns the room's generation: frames that the client sent in an earlier generation are refused
    from now on.
    """

    traits = Traits(needs="internal", repeat="harmless")

    room: str
    client: str
    instance: str
    instance_generation: int


class JoinRoom(Operation[Joined], frozen=True):
    """Store a connection of a user, and announce a new user to the room.

    A connection without a user listens unseen, and is not stored.
    """

    traits = Traits(needs="internal", repeat="harmless")

    room: str
    instance: str
    generation: int
    connection: str
    client: str
    user: str
    state: bytes = b""
    """The state of the connection, as a JSON object; empty without a state."""


class SetPresence(Operation[None], frozen=True):
    """Set the state of an open connection, which is shown as the state of its user.

    Raises `NotFound` if the connection has ended. A server checks the right to send, and that the
    client is the one that has the connection.
    """

    traits = Traits(needs="internal", repeat="harmless")

    room: str
    user: str
    connection: str
    state: bytes
    """A JSON object; `{}` or `null` for no state."""


class LeaveRooms(Operation[None], frozen=True):
    """Mark connections as ended; the departure is announced unless the user comes back."""

    traits = Traits(needs="internal", repeat="harmless")

    instance: str
    generation: int
    left: list[Leaving]


class SettlePresence(Operation[int], frozen=True):
    """Announce users who have not come back, up to a limit; return their number."""

    traits = Traits(needs="internal", repeat="harmless")

    limit: int = PRESENCE_PER_COMMIT


class TakeInstance(Procedure[InstanceTaken], frozen=True):
    """Become an instance. Raises `Locked` if a living process holds the name."""

    traits = Traits(needs="internal")

    name: str
    holder: str
    lease_ms: int = LEASE_MS


class RenewInstance(Operation[None], frozen=True):
    """Prolong an instance's lease. Raises `Fenced` if the lease has ended."""

    traits = Traits(needs="internal", repeat="harmless")

    name: str
    generation: int
    lease_ms: int = LEASE_MS


class FreeInstance(Operation[None], frozen=True):
    """End an instance's lease now; its open connections count as ended."""

    traits = Traits(needs="internal", repeat="harmless")

    name: str
    generation: int


class RemoveInstance(Operation[bool], frozen=True):
    """Free a silent instance; False if it is unknown. Raises `Locked` if it is alive."""

    traits = Traits(needs=(on_store("admin"),), names=("name",))

    name: str


class ListInstances(Read[list[InstanceInfo]], frozen=True):
    """List all known instances in the order of their names."""

    traits = Traits(needs=(on_store("read"),))


class NoteWatermarks(Operation[None], frozen=True):
    """Store the progress of an instance in rooms, and list rooms without listeners.

    A watermark never goes back.
    """

    traits = Traits(needs="internal", repeat="harmless")

    instance: str
    generation: int
    marks: list[Watermark] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Rooms without listeners at this instance: the sweep does not wait for the instance there."""


class SweepRooms(Procedure[int], frozen=True):
    """Delete messages that are older than their room's time to live; return their number."""

    traits = Traits(needs="internal", repeat="harmless")
