"""`millstream log metadata`: the small map of settings that is kept with a log."""

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
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Show or set this.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Set it: JSON, or else text.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Only if it is this now; null: if absent.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the entry.")] = False,
) -> Printed:
    """Show the metadata of a log, or set or delete an entry."""
    if (delete or expect is not None) and key is None:
        raise typer.BadParameter("name the entry")
    if delete and value is not None:
        raise typer.BadParameter("a value or --delete, not both")
    if expect is not None and value is None:
        raise typer.BadParameter("--expect goes with a value to set")
    entries = log.metadata
    if key is not None and value is not None:
        if expect is None:
            entries[key] = parse_json(value)
        else:
            entries.compare_and_set(key, expect=parse_json(expect), value=parse_json(value))
        return Printed(dict(entries))
    found = dict(entries)
    if key is None:
        rows = [(name, _text(one)) for name, one in sorted(found.items())]
        return Printed(found, Table(("key", "value"), rows, none="no metadata"))
    if key not in found:
        known = ", ".join(sorted(found)) or "nothing"
        raise NotFound(f"log {log.name!r} has no metadata {key!r}; it has {known}", key=key)
    if delete:
        del entries[key]
        return Printed(dict(entries))
    return Printed(found[key], safe(_text(found[key])))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
