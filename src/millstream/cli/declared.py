"""Declared options: made from the fields of a struct, with names, types, units and defaults.

A field such as `wait_ms` or `body_bytes_max` becomes an option `--wait` or `--body-max` that is
typed with its unit: `30s`, `64MiB`. A number whose help starts with `DURATION:` or `SIZE:` is
typed in the same way. A field with several texts becomes an option that may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from millstream.cli import display
from millstream.cli.arguments import parse_backoff, parse_duration, parse_size
from millstream.queue.model.backoff import Backoff
from millstream.record import to_ms

_UNIT = re.compile(r"_(ms|s|bytes)(?=_max$|$)")
_METAVARS = {"ms": "DURATION", "s": "DURATION", "bytes": "SIZE"}
_UNITS = {"DURATION": "s", "SIZE": "bytes"}

Fields = dict[str, Any]
"""The fields of a struct that were set on the command line."""


@dataclass(frozen=True, eq=False)
class Declared:
    """The fields of a struct as options: the fields in `helps`, with their help texts.

    Without `helps`, all fields are options, and each has its help in its annotation:
    `Annotated[int, "most records."]`. A help may start with the metavar: `LOG: a log`.
    """

    struct: type[msgspec.Struct]
    helps: Mapping[str, str] = field(default_factory=dict)
    show_defaults: bool = True

    def options(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, annotation and default of each option; None stands for an option not
        typed."""
        defaults = self.struct()
        for name, option in self._fields.items():
            metavar, colon, help = option.help.partition(": ")
            if not colon or not metavar.isupper():
                metavar, help = "", option.help
            shown = option.written(getattr(defaults, name)) if self.show_defaults else ""
            info = typer.Option(
                option.flag + (f"/--no{option.flag[1:]}" if option.kind is bool else ""),
                metavar=metavar or option.metavar,
                help=help[:1].upper() + help[1:],
                min=option.least if option.typed in (int, float) else None,
                show_default=shown or False,
            )
            yield option.option, Annotated[option.typed | None, info], None

    def fields(self, typed: Mapping[str, Any]) -> Fields:
        """Return the typed options as values of the fields."""
        values = ((option, typed[option.option]) for option in self._fields.values())
        return {option.name: option.parsed(value) for option, value in values if value is not None}

    def field(self, option: str, typed: Any) -> None:
        """Parse the typed text of an option. Raises `typer.BadParameter` if the text is wrong."""
        for declared in self._fields.values():
            if declared.option == option:
                declared.parsed(typed)

    @cached_property
    def _fields(self) -> dict[str, DeclaredField]:
        hints = get_type_hints(self.struct, include_extras=True)
        names = self.helps or self.struct.__struct_fields__
        return {name: DeclaredField(name, hints[name], self.helps.get(name, "")) for name in names}


class DeclaredField:
    """A field of a struct, and the form in which its option is typed."""

    def __init__(self, name: str, hint: Any, help: str = "") -> None:
        self.name, self.help, self.least = name, help, 0
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            for extra in extras:
                if isinstance(extra, str):
                    self.help = help or extra
                elif isinstance(extra, msgspec.Meta):
                    self.least = int(extra.ge or 0)
        unit = _UNIT.search(name)
        self.unit = unit[1] if unit else "bytes" if name == "bytes" else ""
        if not unit:
            self.unit = _UNITS.get(self.help.partition(": ")[0], self.unit)
        self.is_many = get_origin(hint) is tuple
        self.kind = hint if self.is_many else (*get_args(hint), hint)[0]
        plain = _UNIT.sub("", name)
        self.option = plain.removesuffix("s") if self.is_many else plain
        """The parameter's name: without its unit, and in the singular."""

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.option.replace('_', '-')}"

    @property
    def typed(self) -> Any:
        """The type that the command line checks."""
        if self.is_many:
            return list[str]
        return self.kind if not self.unit and self.kind in (int, float, bool) else str

    @property
    def metavar(self) -> str | None:
        """The placeholder after the option in the help."""
        return _METAVARS.get(self.unit) or ("N" if self.typed in (int, float) else None)

    def parsed(self, value: Any) -> Any:
        """Return the typed text as a value of the field."""
        if self.unit == "bytes":
            return parse_size(value)
        if self.unit:
            seconds = parse_duration(value)
            units = to_ms(seconds) if self.unit == "ms" else -int(-seconds // 1)
            return units if self.kind is int else seconds
        if self.kind is Backoff:
            return parse_backoff(value)
        return tuple(filter(None, value)) if self.is_many else value

    def written(self, value: Any) -> str:
        """Return a value as it would be typed; empty for an empty value."""
        if not value:
            return ""
        if self.kind is Backoff:
            return display.backoff(value)
        if self.kind is bool:
            return self.flag.removeprefix("--")
        if self.unit == "bytes":
            return display.size(value).replace(".0 ", "")
        if self.unit:
            return display.span(value if self.unit == "ms" else value * 1000)
        return str(value)
