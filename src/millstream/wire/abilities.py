"""Abilities: named additions to the protocol, so that client and server of different versions agree.

A server names its abilities in its first frame. The traits of a command say which ability brought the
command, or a field of it. A client checks each request before it sends the request: a server without
the ability would refuse a whole frame because of an unknown command, and would ignore an unknown field
silently. A server that names no abilities is older than all of them.

The rule for a change of the protocol: a command, a field that changes what a command does, or a value
of a field is never removed, and gets a new ability if it is new. `tests/data/wire` has the commands and
recorded frames of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import NODEFAULT
from msgspec.structs import fields

from millstream.command import Command, Transact
from millstream.errors import InvalidInput

NONE: frozenset[str] = frozenset()


def abilities_of(kinds: Iterable[type[Command[Any]]]) -> tuple[str, ...]:
    """Return the abilities that commands need, in the order of names."""
    names: set[str] = set()
    for kind in kinds:
        traits = kind.traits
        names |= {traits.ability, traits.step_ability}
        names |= set(traits.additions.values())
    return tuple(sorted(names - {""}))


def needed_abilities(command: Command[Any]) -> frozenset[str]:
    """Return the abilities that a server needs to carry out a command as its caller means it."""
    if isinstance(command, Transact):
        of_steps = [_needed(step, step.traits.step_ability) for step in command.steps]
        return NONE.union(*of_steps)
    return _needed(command, "")


def missing_ability(needed: Collection[str], command: Command[Any], release: str) -> InvalidInput:
    """Return the error for a command that a server lacks an ability for."""
    server = f"runs Millstream {release}" if release else "runs an earlier Millstream"
    names = " and ".join(repr(name) for name in sorted(needed))
    return InvalidInput(
        f"{type(command).__name__} needs the ability {names}, and the server lacks it: the server "
        f"{server}. Nothing was sent; update the server to the version of this client",
        abilities=sorted(needed),
        server_version=release,
    )


def _needed(command: Command[Any], more: str) -> frozenset[str]:
    traits = command.traits
    if not (traits.ability or traits.additions or more):
        return NONE
    names = {traits.ability, more}
    names |= {
        check.ability
        for check in _checks(type(command))
        if (check.read(command) == check.value) is check.is_later
    }
    return frozenset(names - {""})


class _FieldCheck(NamedTuple):
    """How to see whether a command uses an addition."""

    ability: str
    read: Callable[[Any], Any]
    value: Any
    """The later value of the field, or the default of a later field."""
    is_later: bool
    """Whether the command uses the addition if the field has the value."""


@cache
def _checks(kind: Any) -> list[_FieldCheck]:
    """Return the checks for the additions of a kind of commands."""
    checks = []
    for field, ability in kind.traits.additions.items():
        path, has_value, later_value = field.partition("=")
        value = later_value if has_value else _default(kind, path)
        checks.append(_FieldCheck(ability, attrgetter(path), value, bool(has_value)))
    return checks


def _default(kind: Any, path: str) -> Any:
    """Return the default of a field, or of a field of a field."""
    name, _, inner = path.partition(".")
    (field,) = [field for field in fields(kind) if field.name == name]
    if inner:
        return _default(field.type, inner)
    return field.default_factory() if field.default is NODEFAULT else field.default
