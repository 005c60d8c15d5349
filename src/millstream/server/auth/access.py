"""Access: the principal of a request, and its rights. A right that no permission names is denied."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Command, Transact
from millstream.errors import Denied
from millstream.queue.model.message import QueueInfo
from millstream.record import LogInfo
from millstream.rooms.commands import SendToRoom
from millstream.rooms.model import RoomInfo
from millstream.server.auth.need import REMEMBERED_MAX, Need, need_to_see, needs_of, needs_of_copy
from millstream.server.auth.permission import ALL_RIGHTS, Permission

_VERBS = {"admin": "administer", "backup": "back up"}

Info = TypeVar("Info", LogInfo, QueueInfo, RoomInfo)


class Principal(Struct, frozen=True):
    """The sender of a request: the name of a token, and its permissions."""

    name: str
    permissions: tuple[Permission, ...]
    token: str = ""
    """The id of the token; empty if none was needed."""
    expires_ms: int | None = None
    is_ticket: bool = False
    """Whether the sender has shown a ticket of the token, not the token."""
    user: str = ""
    """The user of a ticket: the sender of every message to a room."""

    def allows(self, need: Need) -> bool:
        """Whether a permission covers a need."""
        if self.user and need.is_direct and need.action != "read":
            return False
        return _allows(self.permissions, need)

    def require(self, need: Need) -> None:
        """Refuse a need that no permission covers."""
        if not self.allows(need):
            what = f"{need.noun} {need.name!r}" if need.noun != "store" else "the store"
            raise Denied(
                f"{self.name} may not {_VERBS.get(need.action, need.action)} {what}; it needs the permission "
                f"{Permission(need.noun, need.action, need.name or '*')}",
                noun=need.noun,
                action=need.action,
                name=need.name,
            )

    def check(self, command: Command[Any]) -> None:
        """Refuse a command that is not allowed."""
        for need in needs_of(command):
            if self.user or not _allows(self.permissions, need):
                self.require(need)

    def signed(self, command: Any) -> Any:
        """Return the command with the user of the ticket as the sender of room messages."""
        if not self.user:
            return command
        if isinstance(command, Transact):
            return replace(command, steps=[self.signed(step) for step in command.steps])
        if not isinstance(command, SendToRoom):
            return command
        if command.sender not in ("", self.user):
            raise Denied(
                f"this ticket is for the user {self.user!r}, and sends as no other; "
                f"not as {command.sender!r}",
                noun="room",
                action="write",
                name=command.room,
            )
        return replace(command, sender=self.user)

    def grants(self, permissions: Iterable[Permission]) -> bool:
        """Whether the principal has all rights of these permissions."""
        return all(self.allows(need) for permission in permissions for need in permission.worth())


@lru_cache(maxsize=REMEMBERED_MAX)
def _allows(permissions: tuple[Permission, ...], need: Need) -> bool:
    return any(permission.allows(need) for permission in permissions)


@lru_cache(maxsize=REMEMBERED_MAX)
def common(
    permissions: tuple[Permission, ...], held: tuple[Permission, ...]
) -> tuple[Permission, ...]:
    """Return the permissions that the held permissions cover."""
    holder = Principal("", held)
    return tuple(permission for permission in permissions if holder.grants([permission]))


ANYONE_HERE = Principal("local", (Permission("*", "admin"), Permission("store", "backup")))
"""The principal of every client on loopback without tokens. The principal has every right."""

NODE = Principal("node", ALL_RIGHTS)
"""Another node of the cluster: it may also send internal commands, and create the first token."""

NOBODY = Principal("nobody", ())
"""The principal of requests that need no token."""


def visible(principal: Principal, infos: list[Info], need: Need | None = None) -> list[Info]:
    """Return the entries of a listing that a principal may read, or for which it has a right."""
    if need is None:
        return [info for info in infos if principal.allows(need_to_see(info))]
    return [info for info in infos if principal.allows(replace(need, name=info.name))]


def copyable(principal: Principal, names: list[str]) -> list[str]:
    """Return the names of the logs that a principal may copy."""
    return [name for name in names if all(map(principal.allows, needs_of_copy("read", name)))]
