"""What a request needs: a noun, an action and a name, from the rights that its command declares.

A queue's inbox is reached only by rights on the queue, a room's log only by rights on the room, and
logs whose names begin with `millstream:` only by a permission that names `store:admin` literally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from msgspec import Struct

from millstream.command import Action, Command, Exemption, Right, Transact
from millstream.errors import Denied
from millstream.log.model.names import ROOM
from millstream.partitioning import PARTITION, pattern_of, whole_of
from millstream.queue.model.message import QueueInfo
from millstream.queue.rules.sources import INBOX, LATER
from millstream.record import LogInfo
from millstream.replica.forks.aside import fork_pattern
from millstream.rooms.model import RoomInfo

Noun = Literal["log", "queue", "room", "replica", "store"]

RESERVED = "millstream:"
"""Logs in which the server keeps what is its own."""

REMEMBERED_MAX = 10_000
"""Cached answers of each kind: most commands need what was needed before."""


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


def need_to_see(info: LogInfo | QueueInfo | RoomInfo) -> Need:
    """What it needs to be shown something of a listing."""
    if isinstance(info, QueueInfo):
        return Need("queue", "read", info.name)
    if isinstance(info, RoomInfo):
        return Need("room", "read", info.name)
    return need_of_log("read", info.name)


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
        return needs_of_copy(right.action, name)
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


def needs_of_copy(action: Action, name: str) -> tuple[Need, ...]:
    """To copy a log it needs a right of its own; to copy a queue's or a room's, that on it too."""
    own = need_of_log(action, name)
    if own.noun == "store":
        return (own,)
    copy = Need("replica", action, whole_of(name))
    return (copy,) if own.noun == "log" else (copy, own)
