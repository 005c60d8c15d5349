"""A value of any command's type, with every leaf chosen by the test."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from millstream.command import Command
from millstream.format.packing import Batch, Single
from millstream.wire import commands as wire

SINGLE = Single(b"x", None, b"", None)
PLAIN: dict[type, Any] = {int: 1, str: "a", bytes: b"", float: 1.0, bool: True}

Choose = Callable[[type, str], Any]
"""The value of a leaf, by its type and the name of its field."""


def offered() -> list[type[Command[Any]]]:
    """Every command that a client may send, in the order of their names."""
    return sorted(wire.OFFERED, key=lambda kind: kind.__name__)


def sample(hint: Any, choose: Choose = lambda kind, field: PLAIN[kind], field: str = "") -> Any:
    """A value of a type; packed records are always the same sound one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return sample(arguments[0], choose, field)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        if Single in arguments:
            return SINGLE
        return sample(next(one for one in arguments if one is not NoneType), choose, field)
    if origin is list:
        return [sample(arguments[0], choose, field)]
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return (sample(arguments[0], choose, field),)
        return tuple(sample(one, choose, field) for one in arguments)
    if origin is dict:
        return {"k": sample(arguments[1], choose, field)}
    if hint is Any:
        return [] if field in ("steps", "parameters") else 1
    if hint in (Single, Batch):
        return SINGLE
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _filled(hint, choose)
    return choose(hint, field)


def _filled(kind: type[Struct], choose: Choose) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{one.name: sample(hints[one.name], choose, one.name) for one in fields(kind)})


def required(kind: type[Struct]) -> Any:
    """A value of a type in which only what has no default is filled."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(
        **{
            one.name: sample(hints[one.name], field=one.name)
            for one in fields(kind)
            if one.default is NODEFAULT and one.default_factory is NODEFAULT
        }
    )
