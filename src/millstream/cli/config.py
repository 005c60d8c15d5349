"""Where commands get their settings from: flags, then MILLSTREAM_* variables, then millstream.toml.

A key of the file is the long name of an option, without its dashes: `store` at the top counts for
every command, a section such as `[append]` or `[log.tail]` for one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from millstream.threads.database import Millstream
    from millstream.threads.queue import Queue

FILE = "millstream.toml"
DEFAULT_STORE = "millstream.db"


def _store(context: typer.Context, value: Path) -> Path:
    """Let `millstream --store X command` mean what `millstream command --store X` does."""
    source = context.get_parameter_source("store")
    given: Path | None = context.find_root().params.get("store")
    if given is not None and (source is None or source.name != "COMMANDLINE"):
        return given
    return value


StorePath = Annotated[
    Path,
    typer.Option(
        "--store",
        "-s",
        metavar="PATH",
        envvar="MILLSTREAM_STORE",
        help="The store's file.",
        callback=_store,
        show_default=DEFAULT_STORE,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[Millstream]:
    """The store in a file; only a command that may make one says `create`."""
    import millstream
    from millstream.errors import CannotOpen

    if not create and not path.exists():
        raise CannotOpen(
            f"there is no store at {path}; `millstream append` makes one, "
            "--store or MILLSTREAM_STORE names another",
            path=str(path),
        )
    with millstream.open(path) as store:
        yield store


def existing_queue(ms: Millstream, name: str) -> Queue:
    """The queue of a name; there must be one."""
    from millstream.errors import NotFound

    found = ms.queue(name)
    if found.info() is None:
        raise NotFound(
            f"there is no queue {name!r}; `millstream queue create` makes one, "
            "`millstream queue list` shows what there is",
            name=name,
        )
    return found


def load_defaults(command: Any, path: Path | None) -> dict[str, Any]:
    """The defaults that the file gives to each command, as click takes them."""
    place = path or Path(FILE)
    if path is None and not place.exists():
        return {}
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{place}: {error}") from error
    store = content.pop("store", None)
    if store is not None:
        if not isinstance(store, str):
            raise typer.BadParameter(f"{place}: store is a path, not {store!r}")
        store = os.path.join(place.parent, store)
    return _defaults(command, content, store, place, "")


def _defaults(
    command: Any, content: dict[str, Any], store: str | None, place: Path, prefix: str
) -> dict[str, Any]:
    """Translate option names into parameter names, down the tree of commands."""
    known: dict[str, Any] = command.commands
    for name, section in content.items():
        if name not in known or not isinstance(section, dict):
            kinds = "store" if not prefix else "commands"
            raise typer.BadParameter(
                f"{place}: unknown key {prefix + name!r}; there are {kinds} and sections for "
                f"{', '.join(sorted(known))}"
            )
    found: dict[str, Any] = {}
    for name, child in known.items():
        section = content.get(name, {})
        if hasattr(child, "commands"):
            found[name] = _defaults(child, section, store, place, f"{prefix}{name}.")
        else:
            found[name] = _options(child, section, place, f"{prefix}{name}")
            if store is not None:
                found[name].setdefault("store", store)
    return found


def _options(command: Any, section: dict[str, Any], place: Path, name: str) -> dict[str, Any]:
    names = {option: p.name for p in command.params for option in p.opts if option[:2] == "--"}
    found = {}
    for key, value in section.items():
        option = f"--{key.replace('_', '-')}"
        if option not in names:
            raise typer.BadParameter(f"{place}: [{name}] has no option {key!r}")
        found[names[option]] = value
    return found
