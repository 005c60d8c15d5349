"""Needs: the noun, action and name that a command requires, from the rights that it declares.

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
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.record import LogInfo
from millstream.replica.forks.setting_aside import fork_pattern
from millstream.rooms.model import RoomInfo

Noun = Literal["log", "queue", "job", "room", "replica", "store"]

RESERVED = "millstream:"
"""The prefix of logs in which the server keeps its own data."""

REMEMBERED_MAX = 10_000
"""Entries of each cache: most commands have the needs of an earlier command."""


class Need(Struct, frozen=True):
    """A right that a command requires; `name` is a pattern for the sources of a queue."""

    noun: Noun
    action: Action
    name: str
    is_pattern: bool = False
    is_explicit: bool = False
    """Whether a permission must name the noun; a permission for `*` is not enough."""
    is_direct: bool = False
    """Whether the need is for the log of a room, where a client could invent the sender."""


def need_to_see(info: LogInfo | QueueInfo | RoomInfo) -> Need:
    """Return the need for seeing an entry of a listing."""
    if isinstance(info, QueueInfo):
        return Need("queue", "read", info.name)
    if isinstance(info, RoomInfo):
        return Need("room", "read", info.name)
    return need_of_log("read", info.name)


def needs_of(command: Command[Any]) -> Sequence[Need]:
    """Return the needs of a command; a transaction has the needs of its steps.

    `needs_of_parent` has the needs on the log that a fork comes from.
    """
    field = _only_field(type(command))
    if field:
        return _needs_of_kind(type(command), getattr(command, field))
    declared = command.traits.needs
    if isinstance(declared, str):
        return _exempt(command, declared)
    needs: list[Need] = []
    for right in declared:
        if not right.of_parent and _counts(right, command):
            for name in _named(command, right.field):
                needs += _needs_of_right(right, name)
    return needs


@cache
def _only_field(kind: type[Command[Any]]) -> str:
    """Return the field of the only right of a command; empty if it has several rights."""
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
    """Whether a command needs rights on the parent of a fork."""
    declared = command.traits.needs
    return not isinstance(declared, str) and any(right.of_parent for right in declared)


def needs_of_parent(command: Command[Any], parent: str) -> Sequence[Need]:
    """Return the needs of a command on the parent of a fork."""
    needs: list[Need] = []
    for right in command.traits.needs:
        if isinstance(right, Right) and right.of_parent and _counts(right, command):
            needs += _needs_of_right(right, parent)
    return needs


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
    """Return the names in a field; a path with dots leads through lists of values."""
    if "." not in path:
        name = getattr(command, path) if path else ""
        return () if name is None else (name,)
    values: list[Any] = [command]
    for field in path.split("."):
        inner = [getattr(value, field) for value in values]
        values = [item for value in inner for item in (value if _is_many(value) else [value])]
    return dict.fromkeys(name for name in values if name)


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple)


@lru_cache(maxsize=REMEMBERED_MAX)
def _needs_of_right(right: Right, name: str) -> tuple[Need, ...]:
    """Return the needs of a right on a name."""
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
    """Return the need for an action on a log. To put is to write, except into the inbox of a queue.

    The inbox of a queue needs a right on the queue, the log of a room a right on the room, a reserved
    log a right on the store, and a partition a right on its log.
    """
    if PARTITION in name:
        name, is_pattern = _of_partitions(name, is_pattern)
    if name.startswith(RESERVED):
        return Need("store", "admin", "", is_explicit=True)
    if action == "put" and not name.startswith(INBOX):
        action = "write"
    for prefix in (INBOX, LATER):
        if name.startswith(prefix):
            return Need("queue", action, name.removeprefix(prefix), is_pattern=is_pattern)
    if name.startswith(ROOM):
        room = name.removeprefix(ROOM)
        return Need("room", action, room, is_pattern=is_pattern, is_direct=True)
    return Need("log", action, name, is_pattern=is_pattern)


def _of_partitions(name: str, is_pattern: bool) -> tuple[str, bool]:
    """Return the log of a partition, or of the pattern of all partitions."""
    whole = name.removesuffix(pattern_of(""))
    if is_pattern and whole != name:
        return whole, "*" in whole or "?" in whole
    return (name if is_pattern else whole_of(name)), is_pattern


def needs_of_copy(action: Action, name: str) -> tuple[Need, ...]:
    """Return the needs for copying a log; logs of queues and rooms need a second right."""
    need = need_of_log(action, name)
    if need.noun == "store":
        return (need,)
    copy = Need("replica", action, whole_of(name))
    return (copy,) if need.noun == "log" else (copy, need)
