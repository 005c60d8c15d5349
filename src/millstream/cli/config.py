"""The settings of commands: flags, then MILLSTREAM_* variables, then the file millstream.toml.

A key of the file is the long name of an option without its dashes. The keys `store`, `token` and
`ca` at the top are valid for every command; a section such as `[append]` or `[log.tail]` is for one
command. The sections `[backup]`, `[logs]` and `[rooms]` hold the options of `serve` that begin
with `--backup-`, `--logs-` and `--rooms-`, without this prefix. The section `[log_levels]` holds the
levels of log lines by part, and `default` for all parts: `--log-level` of `serve`.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import typer

from millstream.engine.place import is_address, is_bucket
from millstream.errors import InvalidInput
from millstream.log.model.names import did_you_mean

FILE = "millstream.toml"
SHARED = {"store": "store", "token": "secret", "ca": "ca"}
"""The keys at the top of the file, and the parameters of their options."""
OF_SERVE = ("backup", "logs", "rooms")
"""Sections with the options of `serve` for backups, logs and rooms."""
LEVELS = "log_levels"
"""The section with the levels of log lines, by part."""
DEFAULT = "default"
"""The key in this section with the level of all parts that the section does not name."""


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Use the file of settings as defaults of all commands, if the file exists."""
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
    levels = _levels(content.pop(LEVELS, {}), place)
    defaults = _defaults(command, content, shared, place, "")
    serve = command.commands["serve"]
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise typer.BadParameter(f"{place}: {name} must be a section, not {section!r}")
        options = _options(serve, section, place, name, prefix=f"{name}-")
        defaults["serve"] = {**options, **defaults["serve"]}
    if levels:
        given = defaults["serve"].get("log_level", [])
        texts = [given] if isinstance(given, str) else given
        defaults["serve"]["log_level"] = [*levels, *texts]
    return defaults


def _levels(section: Any, place: Path) -> list[str]:
    """Return the levels of a section as the option `--log-level` takes them; all parts come first."""
    if not isinstance(section, dict):
        raise typer.BadParameter(
            f'{_at(place, (LEVELS,))}: {LEVELS} must be a section such as [{LEVELS}] cluster = "debug", '
            f"not {section!r}"
        )
    if not section:
        return []
    from millstream.server.journal import levels_of  # only a file with levels pays for it

    texts = []
    for part_name, level in sorted(section.items(), key=lambda item: item[0] != DEFAULT):
        text = str(level) if part_name == DEFAULT else f"{part_name}={level}"
        try:
            levels_of([text])
        except InvalidInput as error:
            raise typer.BadParameter(
                f"{_at(place, (LEVELS, part_name))}: [{LEVELS}]: {error}"
            ) from error
        texts.append(text)
    return texts


def _defaults(
    command: Any, content: dict[str, Any], shared: dict[str, str], place: Path, prefix: str
) -> dict[str, Any]:
    """Translate option names into parameter names, down the tree of commands."""
    commands: dict[str, Any] = command.commands
    for name, section in content.items():
        if name not in commands or not isinstance(section, dict):
            if name in SHARED and not prefix:
                raise typer.BadParameter(f"{place}: {name} must be text, not {section!r}")
            keys = [*commands] if prefix else [*SHARED, *commands, *OF_SERVE, LEVELS]
            where = _at(place, (*prefix.split("."), name) if prefix else (name,))
            raise typer.BadParameter(
                f"{where}: unknown key {prefix + name!r}{did_you_mean(name, sorted(keys))}"
            )
    defaults: dict[str, Any] = {}
    for name, child in commands.items():
        section = content.get(name, {})
        if hasattr(child, "commands"):
            defaults[name] = _defaults(child, section, shared, place, f"{prefix}{name}.")
        else:
            defaults[name] = {**shared, **_options(child, section, place, f"{prefix}{name}")}
    return defaults


def _at(place: Path, path: tuple[str, ...]) -> str:
    """Return the file with the line of a key, for a message."""
    from millstream.topology.toml_file import lines_of, place_of  # only mistakes pay for it

    keys = tuple(name for name in path if name)
    return place_of(lines_of(place.read_text(encoding="utf-8")), keys, str(place))


def _options(
    command: Any, section: dict[str, Any], place: Path, name: str, *, prefix: str = ""
) -> dict[str, Any]:
    names = {option: p.name for p in command.params for option in p.opts if option[:2] == "--"}
    options = {}
    for key, value in section.items():
        option = f"--{prefix}{key.replace('_', '-')}"
        if option not in names:
            keys = [each[2:].removeprefix(prefix) for each in names if each[2:].startswith(prefix)]
            where = _at(place, (*name.split("."), key))
            raise typer.BadParameter(
                f"{where}: [{name}] has no option {key!r}{did_you_mean(key.replace('_', '-'), keys)}"
            )
        options[names[option]] = value
    return options
