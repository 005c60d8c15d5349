"""`millstream config`: show the settings of commands with their origins, and check the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, to_builtins

from millstream.cli.cluster_options import SECRET
from millstream.cli.command import command
from millstream.cli.config import FILE, LEVELS, OF_SERVE, SHARED
from millstream.cli.display import Printed, PrintedLine, Table, plural, safe
from millstream.cli.serve import SERVER_SETTINGS
from millstream.errors import InvalidInput
from millstream.server.settings import Settings

config = typer.Typer(help="Show and check the settings of commands.", no_args_is_help=True)

HIDDEN = "(hidden)"
VARIABLES = {"secret": "MILLSTREAM_TOKEN", "cluster_secret_file": SECRET}
"""Variables that hold the text of a secret, by the parameters of the options."""

_USER = re.compile(r"//[^/@\s]+@")
"""The user and the password in an address."""

_SHOWN = ("serve",)
"""Commands whose default values are shown too."""

CommandPath = tuple[str, ...]
Lines = Mapping[tuple[str, ...], int]


class ConfigSetting(Struct, frozen=True, kw_only=True):
    """A setting of a command, and where its value comes from."""

    command: str
    """The command; empty for a setting of all commands."""
    setting: str
    """The key in the file; with two dashes before it, the option."""
    value: Any
    origin: str
    """`flag`, `environment`, `file` or `default`."""
    place: str = ""
    """The option, the variable, or the file with the line."""


@command(config, "config show", "config show queue create", "config show --json")
def show(
    context: typer.Context,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="The command.", show_default="all, see above"),
    ] = None,
) -> Printed:
    """Show settings with their values and origins. An origin is a flag, a variable, a line of the file,
    or the default.

    Without a command: the settings that all commands share, those of the server, and what a variable
    or the file sets for other commands. Secrets are hidden.
    """
    reader = SettingsReader(context.find_root())
    path = tuple(name or ())
    if path and path not in reader.commands:
        raise typer.BadParameter(f"there is no command {' '.join(path)!r}")
    settings = [*reader.shared(), *(reader.of_command(path) if path else reader.overview())]
    rows = [
        (each.command, each.setting, _cell(each.value), each.origin, each.place)
        for each in settings
    ]
    columns = ("command", "setting", "value", "origin", "place")
    return Printed(to_builtins(settings), Table(columns, rows))


def _cell(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


@command(config, "config check", "config check --json")
def check(context: typer.Context) -> Printed:
    """Check the values of all settings in the file and in variables."""
    reader = SettingsReader(context.find_root())
    errors = [*reader.errors()]
    count = sum(setting.origin != "default" for setting in reader.everything())
    data = {"file": reader.file, "settings": count, "errors": errors}
    if errors:
        lines = (PrintedLine(f"error: {safe(error)}", "red", note=True) for error in errors)
        return Printed(data, *lines, code=1)
    where = safe(reader.file) if reader.file else f"there is no {FILE}; variables and flags"
    return Printed(data, f"{where}: {plural(count, 'setting')}, all valid")


class SettingsReader:
    """Reads the settings of all commands, as the commands themselves would read them."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.commands: dict[CommandPath, Any] = {
            path: context for path, context in _contexts(root, ()) if path[:1] != ("config",)
        }
        """The contexts of the commands, without the values of flags."""
        self.file, self._lines = _lines(root)

    def shared(self) -> Iterator[ConfigSetting]:
        """Yield the settings of all commands."""
        context = self.commands["serve",]
        for parameter in context.command.params:
            if parameter.name in SHARED.values():
                yield self._shared(context, parameter)

    def overview(self) -> Iterator[ConfigSetting]:
        """Yield the settings of the server, and changed settings of other commands."""
        for path in self.commands:
            for setting in self.of_command(path):
                if path in {(name,) for name in _SHOWN} or setting.origin != "default":
                    yield setting

    def everything(self) -> Iterator[ConfigSetting]:
        """Yield the settings of every command."""
        yield from self.shared()
        for path in self.commands:
            yield from self.of_command(path)

    def of_command(self, path: CommandPath) -> Iterator[ConfigSetting]:
        """Yield the settings of a command, without the settings of all commands."""
        context = self.commands[path]
        for parameter in context.command.params:
            if _is_setting(parameter) and parameter.name not in SHARED.values():
                yield self._setting(path, context, parameter)

    def errors(self) -> Iterator[str]:
        """Yield a sentence for each value that a command would refuse."""
        for path, context in self.commands.items():
            typed: dict[str, Any] = {}
            for parameter in context.command.params:
                if not _is_setting(parameter):
                    continue
                value, source = parameter.consume_value(context, {})
                try:
                    typed[parameter.name] = parameter.type_cast_value(context, value)
                except typer.BadParameter as error:
                    where = self._place(path, parameter, source.name)
                    yield f"{where}: {_key(parameter)}: {error.message}"
            yield from self._refused(path, context, typed)

    def _refused(self, path: CommandPath, context: Any, typed: dict[str, Any]) -> Iterator[str]:
        """Yield the errors of values with units, and of the settings of a server as a whole."""
        for declared in getattr(context.command.callback, "declared", ()):
            for parameter in context.command.params:
                if typed.get(parameter.name) is None:
                    continue
                try:
                    declared.field(parameter.name, typed[parameter.name])
                except (typer.BadParameter, InvalidInput) as error:
                    typed[parameter.name] = None
                    source = parameter.consume_value(context, {})[1].name
                    yield f"{self._place(path, parameter, source)}: {_key(parameter)}: {error}"
        if path == ("serve",):
            try:
                Settings(**SERVER_SETTINGS.fields(typed)).check()
            except InvalidInput as error:
                yield f"[serve]: {error}"

    def _shared(self, context: Any, parameter: Any) -> ConfigSetting:
        """Return a setting of all commands: a flag before the command comes first."""
        source = self._root.get_parameter_source(parameter.name)
        value = self._root.params.get(parameter.name)
        if value is None or source is None or source.name == "DEFAULT":
            return self._setting((), context, parameter)
        return self._made((), parameter, value, source.name)

    def _setting(self, path: CommandPath, context: Any, parameter: Any) -> ConfigSetting:
        value, source = parameter.consume_value(context, {})
        return self._made(path, parameter, value, source.name)

    def _made(self, path: CommandPath, parameter: Any, value: Any, source: str) -> ConfigSetting:
        variable = VARIABLES.get(parameter.name, "")
        if source == "DEFAULT" and variable and os.environ.get(variable):
            value, source, place = HIDDEN, "ENVIRONMENT", variable
        else:
            place = "" if source == "DEFAULT" else self._place(path, parameter, source)
            value = _shown(parameter, value, is_default=source == "DEFAULT")
        origins = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}
        return ConfigSetting(
            command=" ".join(path),
            setting=_key(parameter),
            value=value,
            origin=origins.get(source, "default"),
            place=place,
        )

    def _place(self, path: CommandPath, parameter: Any, source: str) -> str:
        if source == "COMMANDLINE":
            return f"--{_key(parameter)}"
        if source == "ENVIRONMENT":
            context = self.commands.get(path, self._root)
            explicit = parameter.envvar if isinstance(parameter.envvar, str) else ""
            return explicit or f"{context.auto_envvar_prefix}_{parameter.name.upper()}"
        key = _key(parameter)
        keys = [(*path, key), (*path, key.replace("-", "_"))]
        for section in OF_SERVE:
            if path == ("serve",) and key.startswith(f"{section}-"):
                inner = key.removeprefix(f"{section}-")
                keys += [(section, inner), (section, inner.replace("-", "_"))]
        if path == ("serve",) and key == "log-level":
            keys += [each for each in self._lines if each[:1] == (LEVELS,)]
        line = next((self._lines[each] for each in keys if each in self._lines), None)
        return self.file if line is None else f"{self.file}, line {line}"


def _contexts(parent: Any, path: CommandPath) -> Iterator[tuple[CommandPath, Any]]:
    """Yield a context for each command: it knows the variables and the defaults of the file."""
    for name, child in parent.command.commands.items():
        context = child.context_class(child, info_name=name, parent=parent)
        if hasattr(child, "commands"):
            yield from _contexts(context, (*path, name))
        else:
            yield (*path, name), context


def _lines(root: Any) -> tuple[str, Lines]:
    """Return the file of settings, and the lines of its keys."""
    from millstream.topology.toml_file import lines_of

    path = Path(root.params.get("config") or FILE)
    if not path.exists():
        return "", {}
    return str(path), lines_of(path.read_text(encoding="utf-8"))


def _is_setting(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and parameter.name not in ("help", "json")


def _key(parameter: Any) -> str:
    options: list[str] = parameter.opts
    return next(option[2:] for option in options if option.startswith("--"))


def _shown(parameter: Any, value: Any, *, is_default: bool) -> Any:
    """Return a value for people: a default as it would be typed, and no secret."""
    if is_default and parameter.name in VARIABLES:
        return None
    if is_default and parameter.is_flag:
        return bool(value or isinstance(parameter.show_default, str))
    if is_default and isinstance(parameter.show_default, str):
        return str(parameter.show_default)
    if parameter.name == "secret" and value and not str(value).startswith("@"):
        return HIDDEN
    if isinstance(value, Path):
        value = str(value)
    return _USER.sub(f"//{HIDDEN}@", value) if isinstance(value, str) else value
