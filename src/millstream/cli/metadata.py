"""`millstream log metadata`: the small map of settings that is kept with a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, opened
from millstream.cli.read import existing


def metadata(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Show or set this.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Set it: JSON, or else text.")
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    expect: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Only if it is this now; null: if absent.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the entry.")] = False,
    json: AsJson = False,
) -> None:
    """Show the metadata of a log, or set or delete an entry."""
    from millstream.cli import display
    from millstream.cli.arguments import parse_json

    if (delete or expect is not None) and key is None:
        raise typer.BadParameter("name the entry")
    if delete and value is not None:
        raise typer.BadParameter("a value or --delete, not both")
    if expect is not None and value is None:
        raise typer.BadParameter("--expect goes with a value to set")
    with opened(store) as ms:
        entries = existing(ms, log).metadata
        if key is not None and value is not None:
            if expect is None:
                entries[key] = parse_json(value)
            else:
                entries.compare_and_set(key, expect=parse_json(expect), value=parse_json(value))
        elif key is not None and delete:
            _existing_entry(dict(entries), log, key)
            del entries[key]
        found = dict(entries)
    if delete or value is not None:
        return
    if key is not None:
        entry = _existing_entry(found, log, key)
        display.say_json(entry) if json else display.say(_text(entry))
    elif json:
        display.say_json(found)
    elif found:
        display.say_table(
            ("key", "value"), [(display.safe(k), _text(v)) for k, v in sorted(found.items())]
        )
    else:
        display.note("no metadata")


def _existing_entry(entries: dict[str, Any], log: str, key: str) -> Any:
    from millstream.errors import NotFound

    if key not in entries:
        known = ", ".join(sorted(entries)) or "nothing"
        raise NotFound(f"log {log!r} has no metadata {key!r}; it has {known}", key=key)
    return entries[key]


def _text(value: Any) -> str:
    import msgspec

    from millstream.cli import display

    return display.safe(value if isinstance(value, str) else msgspec.json.encode(value).decode())
