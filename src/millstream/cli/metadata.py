"""`millstream log metadata`: show, set and delete the metadata of a log."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from millstream import Log
from millstream.cli.arguments import parse_json
from millstream.cli.display import Printed, Table, safe
from millstream.errors import NotFound


def metadata(
    log: Log,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="The entry.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The new value: JSON, else text.")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Set it only if this is the value; null: none."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the entry.")] = False,
) -> Printed:
    """Show the metadata of a log, or set or delete an entry."""
    if (delete or expect is not None) and key is None:
        raise typer.BadParameter("name the entry")
    if delete and value is not None:
        raise typer.BadParameter("a value or --delete, not both")
    if expect is not None and value is None:
        raise typer.BadParameter("--expect needs a value to set")
    entries = log.metadata
    if key is not None and value is not None:
        if expect is None:
            entries[key] = parse_json(value)
        else:
            entries.compare_and_set(key, expect=parse_json(expect), value=parse_json(value))
        return Printed(dict(entries))
    values = dict(entries)
    if key is None:
        rows = [(name, _text(entry)) for name, entry in sorted(values.items())]
        return Printed(values, Table(("key", "value"), rows, none="no metadata"))
    if key not in values:
        names = ", ".join(sorted(values)) or "nothing"
        raise NotFound(f"log {log.name!r} has no metadata {key!r}; it has {names}", key=key)
    if delete:
        del entries[key]
        return Printed(dict(entries))
    return Printed(values[key], safe(_text(values[key])))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
