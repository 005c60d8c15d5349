"""What can be asked of rooms."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from millstream.command import Operation, Procedure, Read, Right, Traits, on_room, on_store
from millstream.rooms.model import (
    InstanceInfo,
    InstanceTaken,
    Joined,
    Leaving,
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
from millstream.rooms.turns import Turn

LEASE_MS = 30_000
"""How long an instance counts as alive after its last renewal."""

PRESENCE_PER_COMMIT = 500
"""Connections that one commit forgets, or notes as left."""


class SendToRoom(Operation[int], frozen=True):
    """Send messages to all listeners of a room, in one commit; answers the offset of the first."""

    traits = Traits(needs=(on_room("write"),), is_step=True)

    room: str
    messages: list[RoomMessage]
    sender: str = ""
    """The user that listeners are shown."""
    origin: str = ""
    """The client that sends: it does not get the messages itself."""
    number: int | None = None
    """The client's own number of this call, by which it finds out whether it was carried out."""
    generation: int | None = None
    """The `generation` of its welcome: refused (`Fenced`) if the client has come back since."""


class Broadcast(Operation[Sent], frozen=True):
    """Send for a client of this process; also answers the time that the messages carry.

    By that an instance can push them to its listeners without reading them back.
    """

    traits = Traits(needs="internal")

    send: SendToRoom
    turn: Turn | None = None
    """Its place among the frames of its connection; None: it is stored whatever was not."""


class SpecifyRoom(Operation[None], frozen=True):
    """Say how a room is; with `expect` only if its settings are still those."""

    traits = Traits(needs=(on_room("admin"),), is_step=True)

    room: str
    settings: RoomSettings
    expect: RoomSettings | None = None


class DeleteRoom(Operation[bool], frozen=True):
    """Forget a room, its messages and what it retained; False if there was none."""

    traits = Traits(needs=(on_room("admin"),), is_step=True, tidies=True)

    room: str


class DescribeRoom(Read[RoomInfo | None], frozen=True):
    """How a room stands; None if there is none."""

    traits = Traits(needs=(on_room("read"),))

    room: str


class ListRooms(Read[list[RoomInfo]], frozen=True):
    """Rooms in the order of their names, after one name, at most so many."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int


class GetRetained(Read[RetainedValues], frozen=True):
    """What a room has kept, all of it or some types, and the end of its log at that moment."""

    traits = Traits(needs=(on_room("read"),), is_large=True)

    room: str
    types: list[str] | None = None


class GetPresence(Read[PresenceList], frozen=True):
    """The users in a room, and the end of its log at that moment."""

    traits = Traits(needs=(on_room("read"),))

    room: str


class MintTicket(Procedure[RoomTicket], frozen=True):
    """Make a short-lived ticket by which a browser enters one room as one user."""

    traits = Traits(needs=(on_room("read"), Right("room", "write", "room", when=("can", "write"))))

    room: str
    user: str
    can: Literal["read", "write"] = "write"
    seconds: float = 60.0


class LookIntoRoom(Read[RoomLook], frozen=True):
    """Everything that a joiner is told, as of one commit."""

    traits = Traits(needs="internal")

    room: str
    types: list[str] | None = None


class ReadRetained(Read[RetainedSome], frozen=True):
    """More of what a room retains, as of now; nothing if it is another room by now."""

    traits = Traits(needs="internal")

    room: str
    types: list[str] | None
    log_id: int
    after: bytes
    """The stored key behind which to go on."""


class ResumeInRoom(Operation[int], frozen=True):
    """Note that a client is back, before it is looked up what of its frames is stored.

    Answers the room's generation: what the client sent in an earlier one is refused from now on.
    """

    traits = Traits(needs="internal", repeat="harmless")

    room: str
    client: str
    instance: str
    instance_generation: int


class JoinRoom(Operation[Joined], frozen=True):
    """Note a connection of a user; tells the room if the user was not there.

    Nothing is noted of one without a user: it listens unseen.
    """

    traits = Traits(needs="internal", repeat="harmless")

    room: str
    instance: str
    generation: int
    connection: str
    client: str
    user: str


class LeaveRooms(Operation[None], frozen=True):
    """Note that connections have ended; the room is told if the user does not come back."""

    traits = Traits(needs="internal", repeat="harmless")

    instance: str
    generation: int
    left: list[Leaving]


class SettlePresence(Operation[int], frozen=True):
    """Tell rooms of users who have not come back; answers how many. Some of them in each call."""

    traits = Traits(needs="internal", repeat="harmless")

    limit: int = PRESENCE_PER_COMMIT


class TakeInstance(Procedure[InstanceTaken], frozen=True):
    """Become an instance, unless another process holds the name and is alive (`Locked`)."""

    traits = Traits(needs="internal")

    name: str
    holder: str
    lease_ms: int = LEASE_MS


class RenewInstance(Operation[None], frozen=True):
    """Prolong an instance's lease; `Fenced` if it has ended, or another process took its place."""

    traits = Traits(needs="internal", repeat="harmless")

    name: str
    generation: int
    lease_ms: int = LEASE_MS


class FreeInstance(Operation[None], frozen=True):
    """End an instance's lease now; the connections that it has not ended count as left."""

    traits = Traits(needs="internal", repeat="harmless")

    name: str
    generation: int


class RemoveInstance(Operation[bool], frozen=True):
    """Forget an instance that is silent; `Locked` if it is alive, False if there is none."""

    traits = Traits(needs=(on_store("admin"),), names=("name",))

    name: str


class ListInstances(Read[list[InstanceInfo]], frozen=True):
    """All instances that are remembered, in the order of their names."""

    traits = Traits(needs=(on_store("read"),))


class NoteWatermarks(Operation[None], frozen=True):
    """Note how far an instance has come in several rooms, and in which nobody listens any more.

    A watermark never goes back.
    """

    traits = Traits(needs="internal", repeat="harmless")

    instance: str
    generation: int
    marks: list[Watermark] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Rooms without listeners at this instance: their messages do not wait for it."""


class SweepRooms(Procedure[int], frozen=True):
    """Forget messages that are older than their room's time to live; answers how many."""

    traits = Traits(needs="internal", repeat="harmless")
