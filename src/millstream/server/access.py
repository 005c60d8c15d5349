"""Access: who asks, and what they may do."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct

from millstream import command as base
from millstream.command import Command, Mutation
from millstream.errors import MillstreamError
from millstream.log import commands as logs
from millstream.queue import commands as queues

Noun = Literal["log", "queue", "store"]
Action = Literal["read", "write", "admin"]


class Denied(MillstreamError):
    """A token that may not do this. Data: `noun`, `action`, `name`."""


class Permission(Struct, frozen=True):
    """May do `action`, and whatever is less, to every `noun` whose name matches."""

    noun: Noun | Literal["*"]
    action: Action
    pattern: str = "*"

    def allows(self, need: Need) -> bool:
        """Whether it covers a need."""
        return (
            self.noun in ("*", need.noun)
            and _RANK[self.action] >= _RANK[need.action]
            and fnmatchcase(need.name, self.pattern)
        )


class Need(Struct, frozen=True):
    """What a command needs."""

    noun: Noun
    action: Action
    name: str


class Principal(Struct, frozen=True):
    """Whoever asks: a token's name, and what it may do."""

    name: str
    permissions: tuple[Permission, ...]

    def check(self, command: Command[Any]) -> None:
        """Refuse a command that is not allowed."""
        for need in needs_of(command):
            if not any(permission.allows(need) for permission in self.permissions):
                raise Denied(
                    f"{self.name} may not {need.action} {need.noun} {need.name!r}",
                    noun=need.noun,
                    action=need.action,
                    name=need.name,
                )


ANYONE_HERE = Principal("local", (Permission("*", "admin"),))
"""On loopback without tokens, whoever can connect may do everything."""

_RANK = {"read": 0, "write": 1, "admin": 2}

_ADMIN = (
    logs.Truncate,
    logs.DeleteLog,
    logs.SetRetention,
    logs.EnforceRetention,
    queues.SpecifyQueue,
    queues.DeleteQueue,
    queues.PauseQueue,
    queues.PurgeQueue,
    queues.RedriveClaims,
)


def needs_of(command: Command[Any]) -> list[Need]:
    """What a command needs; a transaction needs what its steps need."""
    if isinstance(command, base.Transact):
        return [need for step in command.steps for need in needs_of(step)]
    action: Action = "read"
    if isinstance(command, _ADMIN):
        action = "admin"
    elif isinstance(command, Mutation | queues.PutForLater | queues.ClaimMessages):
        action = "write"
    log, queue = getattr(command, "log", None), getattr(command, "queue", None)
    if queue is not None:
        return [Need("queue", action, queue)]
    if log is not None:
        return [Need("log", action, log)]
    return [Need("store", "admin" if isinstance(command, base.Fold) else action, "")]
