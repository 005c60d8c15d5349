"""Access: who asks, and what they may do.

A permission is a noun, an action and a pattern of names, written `log:write:orders*`. What no
permission names is denied. A queue's inbox is reached only by rights on the queue, a room's log only
by rights on the room, and logs whose names begin with `millstream:` only by a permission that names
`store:admin` literally.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Action, Command, Exemption, Right, Transact
from millstream.errors import Denied, InvalidInput
from millstream.limits import NAME_CHARS_MAX
from millstream.log.names import ROOM
from millstream.partitioning import PARTITION, pattern_of, whole_of
from millstream.queue.model.message import QueueInfo
from millstream.queue.rules.sources import INBOX, LATER
from millstream.record import LogInfo
from millstream.replica.forks.aside import fork_pattern
from millstream.rooms.commands import SendToRoom
from millstream.rooms.model import RoomInfo

Noun = Literal["log", "queue", "room", "replica", "store"]
Info = TypeVar("Info", LogInfo, QueueInfo, RoomInfo)

RESERVED = "millstream:"
"""Logs in which the server keeps what is its own."""

PERMISSIONS_MAX = 100
"""Permissions of one token or ticket: each is looked at for each command."""

REMEMBERED_MAX = 10_000
"""Cached answers whether a need is met: most commands need what was needed before."""

_NOUNS = (*get_args(Noun), "*")
_RANK = {"read": 0, "write": 1, "admin": 2}


class Need(Struct, frozen=True):
    """What a command needs; `name` is a pattern for a queue's sources, else a name."""

    noun: Noun
    action: Action
    name: str
    is_pattern: bool = False
    is_explicit: bool = False
    """Whether a permission must name the noun; one for `*` does not count."""
    is_direct: bool = False
    """Whether it is about a room's log rather than the room: there a sender can be made up."""


class Permission(Struct, frozen=True):
    """May do `action`, and whatever is less, to every `noun` whose name matches."""

    noun: Noun | Literal["*"]
    action: Action
    pattern: str = "*"

    def allows(self, need: Need) -> bool:
        """Whether it covers a need."""
        if self.noun != need.noun and (self.noun != "*" or need.is_explicit):
            return False
        if _RANK[self.action] < _RANK[need.action]:
            return False
        if need.is_pattern:
            return covers(self.pattern, need.name)
        return self.pattern == "*" or matches(self.pattern, need.name)

    def __str__(self) -> str:
        """As it is written: `parse_permission` reads it."""
        return f"{self.noun}:{self.action}" + ("" if self.pattern == "*" else f":{self.pattern}")


class Principal(Struct, frozen=True):
    """The sender of a request: a token's name, and what it may do."""

    name: str
    permissions: tuple[Permission, ...]
    token: str = ""
    """The id of the token; empty if none was needed."""
    expires_ms: int | None = None
    is_ticket: bool = False
    """Whether it came with a ticket, which the token was good for."""
    user: str = ""
    """Whom its ticket is for: it sends to rooms as this user, and as no other."""

    def allows(self, need: Need) -> bool:
        """Whether any of its permissions covers a need."""
        if self.user and need.is_direct and need.action != "read":
            return False
        return _allows(self.permissions, need)

    def require(self, need: Need) -> None:
        """Refuse what no permission covers."""
        if not self.allows(need):
            what = f"{need.noun} {need.name!r}" if need.noun != "store" else "the store"
            raise Denied(
                f"{self.name} may not {need.action} {what}; it needs the permission "
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
        """The command, with what it sends to rooms sent by the user that its ticket is for."""
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

    def grants(self, wanted: Iterable[Permission]) -> bool:
        """Whether it may do whatever these permissions allow."""
        return all(self.allows(need) for permission in wanted for need in _worth(permission))


@lru_cache(maxsize=REMEMBERED_MAX)
def _allows(permissions: tuple[Permission, ...], need: Need) -> bool:
    return any(permission.allows(need) for permission in permissions)


@lru_cache(maxsize=REMEMBERED_MAX)
def common(wanted: tuple[Permission, ...], held: tuple[Permission, ...]) -> tuple[Permission, ...]:
    """Of some permissions, those that a principal's own permissions cover."""
    holder = Principal("", held)
    return tuple(one for one in wanted if holder.grants([one]))


ANYONE_HERE = Principal("local", (Permission("*", "admin"),))
"""On loopback without tokens, every client may do everything."""

NODE = Principal("node", (Permission("*", "admin"), Permission("store", "admin")))
"""Another node of the cluster: it may also ask for what no client may, and makes the first token."""

NOBODY = Principal("nobody", ())
"""The principal of requests that need no token."""


def visible(principal: Principal, infos: list[Info]) -> list[Info]:
    """Of a listing, what one may read."""
    return [info for info in infos if principal.allows(_need_to_see(info))]


def copyable(principal: Principal, names: list[str]) -> list[str]:
    """Of some logs, those that one may copy."""
    return [name for name in names if all(map(principal.allows, _needs_of_copy("read", name)))]


def _need_to_see(info: LogInfo | QueueInfo | RoomInfo) -> Need:
    if isinstance(info, QueueInfo):
        return Need("queue", "read", info.name)
    if isinstance(info, RoomInfo):
        return Need("room", "read", info.name)
    return need_of_log("read", info.name)


# Which command needs what.


def needs_of(command: Command[Any]) -> Sequence[Need]:
    """What a command needs, by the rights that it declares; a transaction needs what its steps need.

    Those on the log that a log was forked from are not among them: see `needs_of_parent`.
    """
    field = _only_field(type(command))
    if field:
        return _needs_of_kind(type(command), getattr(command, field))
    declared = command.traits.needs
    if isinstance(declared, str):
        return _exempt(command, declared)
    found: list[Need] = []
    for right in declared:
        if not right.of_parent and _counts(right, command):
            for name in _named(command, right.field):
                found += _needs_of_right(right, name)
    return found


@cache
def _only_field(kind: type[Command[Any]]) -> str:
    """The field that all rights of most commands are about: one plain right; else empty."""
    declared = kind.traits.needs
    if isinstance(declared, str) or len(declared) != 1:
        return ""
    (right,) = declared
    return "" if "." in right.field or right.of_parent or right.when else right.field


@lru_cache(maxsize=REMEMBERED_MAX)
def _needs_of_kind(kind: type[Command[Any]], name: str) -> tuple[Need, ...]:
    right = kind.traits.needs[0]
    assert isinstance(right, Right)
    return _needs_of_right(right, name)


def names_parent(command: Command[Any]) -> bool:
    """Whether a command needs rights on the log that its log was forked from."""
    declared = command.traits.needs
    return not isinstance(declared, str) and any(right.of_parent for right in declared)


def needs_of_parent(command: Command[Any], parent: str) -> Sequence[Need]:
    """What a command needs of the log that its log was forked from."""
    found: list[Need] = []
    for right in command.traits.needs:
        if isinstance(right, Right) and right.of_parent and _counts(right, command):
            found += _needs_of_right(right, parent)
    return found


def _counts(right: Right, command: Command[Any]) -> bool:
    return right.when is None or getattr(command, right.when[0]) == right.when[1]


def _exempt(command: Command[Any], why: Exemption) -> Sequence[Need]:
    if why == "internal":
        raise Denied(f"{type(command).__name__} is the store's own; no client may ask for it")
    if why == "steps":
        assert isinstance(command, Transact)
        return [need for step in command.steps for need in needs_of(step)]
    return ()


def _named(command: Command[Any], path: str) -> Iterable[str]:
    """The names in a field, or in a field of each of the values in a field."""
    if "." not in path:
        name = getattr(command, path) if path else ""
        return () if name is None else (name,)
    found: list[Any] = [command]
    for field in path.split("."):
        values = [getattr(one, field) for one in found]
        found = [one for value in values for one in (value if _is_many(value) else [value])]
    return dict.fromkeys(one for one in found if one)


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple)


@lru_cache(maxsize=REMEMBERED_MAX)
def _needs_of_right(right: Right, name: str) -> tuple[Need, ...]:
    """What a right means for what is named so."""
    if right.noun == "store":
        return (Need("store", right.action, ""),)
    if right.noun == "copy":
        return _needs_of_copy(right.action, name)
    if right.noun == "queue" or right.noun == "room":
        return (Need(right.noun, right.action, name),)
    if right.is_fork:
        return (need_of_log(right.action, fork_pattern(name), is_pattern=True),)
    is_pattern = right.is_pattern and ("*" in name or "?" in name)
    return (need_of_log(right.action, name, is_pattern=is_pattern),)


def need_of_log(action: Action, name: str, *, is_pattern: bool = False) -> Need:
    """What it needs to do something to a log: an inbox is its queue's, a room's log the room's, a
    reserved one the store's, and a partition is part of its log."""
    if PARTITION in name:
        name, is_pattern = _of_partitions(name, is_pattern)
    if name.startswith(RESERVED):
        return Need("store", "admin", "", is_explicit=True)
    for prefix in (INBOX, LATER):
        if name.startswith(prefix):
            return Need("queue", action, name.removeprefix(prefix), is_pattern=is_pattern)
    if name.startswith(ROOM):
        room = name.removeprefix(ROOM)
        return Need("room", action, room, is_pattern=is_pattern, is_direct=True)
    return Need("log", action, name, is_pattern=is_pattern)


def _of_partitions(name: str, is_pattern: bool) -> tuple[str, bool]:
    """The log that is meant by a partition, or by the pattern of all of its partitions."""
    whole = name.removesuffix(pattern_of(""))
    if is_pattern and whole != name:
        return whole, "*" in whole or "?" in whole
    return (name if is_pattern else whole_of(name)), is_pattern


def _needs_of_copy(action: Action, name: str) -> tuple[Need, ...]:
    """To copy a log it needs a right of its own; to copy a queue's or a room's, that on it too."""
    own = need_of_log(action, name)
    if own.noun == "store":
        return (own,)
    copy = Need("replica", action, whole_of(name))
    return (copy,) if own.noun == "log" else (copy, own)


# Permissions as text.


def parse_permission(text: str) -> Permission:
    """A permission such as `log:write:orders*`, `queue:admin:mail`, `store:read` or `*:admin`."""
    noun, _, rest = text.partition(":")
    action, colon, pattern = rest.partition(":")
    if noun not in _NOUNS or action not in _RANK or (colon and not pattern):
        raise InvalidInput(
            f"a permission is NOUN:ACTION or NOUN:ACTION:PATTERN, with the nouns "
            f"{', '.join(_NOUNS)} and the actions {', '.join(_RANK)}, such as "
            f"log:write:orders*; not {text[:300]!r}"
        )
    pattern = pattern or "*"
    if len(pattern) > NAME_CHARS_MAX or not pattern.isprintable():
        raise InvalidInput(
            f"a pattern has up to {NAME_CHARS_MAX} characters that can be printed, "
            f"not {pattern[:300]!r}"
        )
    if noun == "store" and pattern != "*":
        raise InvalidInput(f"there is one store: write store:{action}, without a pattern")
    if noun == "log" and pattern.startswith((INBOX, LATER)):
        queue = pattern.partition(":")[2]
        raise InvalidInput(
            f"the log {pattern!r} belongs to a queue: write queue:{action}:{queue or '*'}"
        )
    if noun == "log" and pattern.startswith(ROOM):
        room = pattern.removeprefix(ROOM)
        raise InvalidInput(
            f"the log {pattern!r} belongs to a room: write room:{action}:{room or '*'}"
        )
    if noun == "log" and pattern.startswith(RESERVED):
        raise InvalidInput(f"logs named {RESERVED}… are the store's own: only store:admin has them")
    return Permission(noun, action, pattern)  # type: ignore[arg-type]


def parse_permissions(texts: Iterable[str]) -> tuple[Permission, ...]:
    """Permissions in the order given, each once; at least one."""
    found = tuple(dict.fromkeys(parse_permission(text) for text in texts))
    if not found:
        raise InvalidInput("without a permission it could do nothing; name one: log:read:orders*")
    if len(found) > PERMISSIONS_MAX:
        raise InvalidInput(f"{len(found)} permissions; the limit is {PERMISSIONS_MAX}")
    return found


def _worth(permission: Permission) -> list[Need]:
    """The most that a permission allows."""
    action, pattern = permission.action, permission.pattern
    if permission.noun == "store":
        return [Need("store", action, "", is_explicit=action == "admin")]
    if permission.noun != "*":
        return [Need(permission.noun, action, pattern, is_pattern=True)]
    nouns: tuple[Noun, ...] = ("log", "queue", "room", "replica")
    found = [Need(noun, action, pattern, is_pattern=True) for noun in nouns]
    return [*found, Need("store", action, "")] if matches(pattern, "") else found


# Patterns: `*` is any text, `?` one character, everything else itself.


def matches(pattern: str, name: str) -> bool:
    """Whether a name is one that the pattern means."""
    return _expression(pattern, any_one=".").fullmatch(name) is not None


def covers(pattern: str, other: str) -> bool:
    """Whether every name that `other` means is one that `pattern` means.

    `other` is read as text in which a `*` can be covered only by a `*`, and a `?` by either. It
    never says yes wrongly; of some patterns with several stars it says no although they cover.
    """
    return _expression(_sorted(pattern), any_one="[^*]").fullmatch(_sorted(other)) is not None


@lru_cache(maxsize=4_096)
def _expression(pattern: str, *, any_one: str) -> re.Pattern[str]:
    """Stars are possessive up to where the text behind them first occurs: no backtracking."""
    head, *parts = re.split(r"\*+", pattern)
    text = [_literal(head, any_one)]
    for part in parts[:-1]:
        text.append(f"(?>.*?{_literal(part, any_one)})")
    if parts:
        text.append(f".*{_literal(parts[-1], any_one)}")
    return re.compile("".join(text), re.DOTALL)


def _literal(text: str, any_one: str) -> str:
    return "".join(any_one if char == "?" else re.escape(char) for char in text)


def _sorted(pattern: str) -> str:
    """Wildcards side by side mean the same in any order: question marks first, then one star."""
    return re.sub(r"[*?]{2,}", lambda run: "?" * run[0].count("?") + "*" * ("*" in run[0]), pattern)
