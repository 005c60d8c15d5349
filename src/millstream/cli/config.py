"""Where commands get their settings from: flags, then MILLSTREAM_* variables, then millstream.toml.

A key of the file is the long name of an option, without its dashes: `store`, `token` and `ca` at the
top count for every command, a section such as `[append]` or `[log.tail]` for one. The sections
`[logs]` and `[rooms]` have the options of `serve` that begin with `--logs-` and `--rooms-`, without
that.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import typer

from millstream.engine.place import is_address, is_bucket

FILE = "millstream.toml"
SHARED = {"store": "store", "token": "secret", "ca": "ca"}
"""What may stand at the top, and the parameters of these options."""
OF_SERVE = ("logs", "rooms")
"""Sections with what a server does about logs and rooms."""


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Let the file of settings give the defaults of all commands; it need not be there."""
    place = path or Path(FILE)
    if path is not None or place.exists():
        context.default_map = read_file(context.command, place)
    return path


def read_file(command: Any, place: Path) -> dict[str, Any]:
    """Return the defaults of a command's options, as a file of settings has them.

    Raises `typer.BadParameter` for a file that cannot be read, or a key that is no option.
    """
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{place}: {error}") from error
    shared = {}
    for name, parameter in SHARED.items():
        if isinstance(content.get(name), str):
            shared[parameter] = content.pop(name)
    store = shared.get("store", "")
    if store and not is_address(store) and not is_bucket(store):
        shared["store"] = os.path.join(place.parent, store)
    sections = {name: content.pop(name, {}) for name in OF_SERVE}
    found = _defaults(command, content, shared, place, "")
    serve = command.commands["serve"]
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise typer.BadParameter(f"{place}: {name} is a section, not {section!r}")
        options = _options(serve, section, place, name, prefix=f"{name}-")
        found["serve"] = {**options, **found["serve"]}
    return found


def _defaults(
    command: Any, content: dict[str, Any], shared: dict[str, str], place: Path, prefix: str
) -> dict[str, Any]:
    """Translate option names into parameter names, down the tree of commands."""
    known: dict[str, Any] = command.commands
    for name, section in content.items():
        if name not in known or not isinstance(section, dict):
            if name in SHARED and not prefix:
                raise typer.BadParameter(f"{place}: {name} is a text, not {section!r}")
            kinds = ", ".join(SHARED) if not prefix else "commands"
            raise typer.BadParameter(
                f"{place}: unknown key {prefix + name!r}; there are {kinds} and sections for "
                f"{', '.join(sorted([*known, *([] if prefix else OF_SERVE)]))}"
            )
    found: dict[str, Any] = {}
    for name, child in known.items():
        section = content.get(name, {})
        if hasattr(child, "commands"):
            found[name] = _defaults(child, section, shared, place, f"{prefix}{name}.")
        else:
            found[name] = {**shared, **_options(child, section, place, f"{prefix}{name}")}
    return found


def _options(
    command: Any, section: dict[str, Any], place: Path, name: str, *, prefix: str = ""
) -> dict[str, Any]:
    names = {option: p.name for p in command.params for option in p.opts if option[:2] == "--"}
    found = {}
    for key, value in section.items():
        option = f"--{prefix}{key.replace('_', '-')}"
        if option not in names:
            raise typer.BadParameter(f"{place}: [{name}] has no option {key!r}")
        found[names[option]] = value
    return found
