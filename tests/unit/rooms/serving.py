"""A store, its clock, and what an instance of a server would ask of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.command import Command
from millstream.record import Record
from millstream.rooms import commands as c
from millstream.rooms.holder import make_holder
from millstream.rooms.model import Joined, Leaving, RoomMessage
from millstream.rooms.names import log_of
from millstream.rooms.settings import RoomSettings
from millstream.testing import SimulatedClock
from millstream.threads.database import Millstream

T = TypeVar("T")


def message(kind: str, data: Any = None, key: str | None = None) -> RoomMessage:
    return RoomMessage(kind, json.dumps(data).encode(), key)


def deletion(kind: str, key: str | None = None) -> RoomMessage:
    return RoomMessage(kind, key=key, deleted=True)


@dataclass
class Served:
    """A store in which rooms are used as a server uses them."""

    ms: Millstream
    clock: SimulatedClock

    def ask(self, command: Command[T]) -> T:
        return self.ms.session.execute(command)

    def take(self, name: str, holder: str | None = None) -> int:
        """Become an instance; its generation."""
        holder = make_holder(self.clock) if holder is None else holder
        return self.ask(c.TakeInstance(name, holder)).generation

    def send(self, room: str, *messages: RoomMessage, **more: Any) -> int:
        return self.ask(c.SendToRoom(room, list(messages), **more))

    def specify(self, room: str, **settings: Any) -> None:
        self.ask(c.SpecifyRoom(room, RoomSettings(**settings)))

    def join(self, room: str, user: str, at: tuple[str, int], connection: str = "1") -> Joined:
        return self.ask(c.JoinRoom(room, *at, connection, "client", user))

    def leave(self, room: str, user: str, at: tuple[str, int], connection: str = "1") -> None:
        self.ask(c.LeaveRooms(*at, [Leaving(room, user, connection)]))

    def settle(self) -> int:
        """Settle until nothing is left to do; how many users have left."""
        found = 0
        for _ in range(4):
            found += self.ask(c.SettlePresence())
        return found

    def users(self, room: str) -> dict[str, int]:
        """Who is there, and by how many connections."""
        return {one.user: one.connections for one in self.ask(c.GetPresence(room)).users}

    def retained(self, room: str) -> dict[tuple[str, str | None], Any]:
        values = self.ask(c.GetRetained(room)).values
        return {(one.type, one.key): one.json() for one in values}

    def records(self, room: str) -> list[Record]:
        return list(self.ms.log(log_of(room)).read())

    def told(self, room: str) -> list[tuple[str, str]]:
        """What was said of users who came and went."""
        found = [(one.headers["type"], one.json()["user"]) for one in self.records(room)]
        return [(str(kind), user) for kind, user in found]
