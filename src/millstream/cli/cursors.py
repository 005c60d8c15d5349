"""`millstream log cursors`: list, move and delete the cursors of a log."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream import CursorInfo, Log
from millstream.cli.arguments import parse_past, parse_position
from millstream.cli.command import Consent
from millstream.cli.display import Printed, Table, safe
from millstream.errors import NotFound

RANGES_MAX = 5
"""Most acknowledged ranges in a table."""


def cursors(
    log: Log,
    consent: Consent,
    name: Annotated[str | None, typer.Argument(metavar="CURSOR", help="Only this cursor.")] = None,
    seek: Annotated[
        str | None,
        typer.Option(metavar="OFFSET", help="Set its floor: an offset, earliest, latest, or -10."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Set its floor to the first record at or after a time: ISO 8601, or an age such as 15m.",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the cursor.")] = False,
) -> Printed:
    """List the cursors of a log, or move or delete a cursor."""
    actions = (seek is not None) + (since is not None) + delete
    if name is None and actions:
        raise typer.BadParameter("name the cursor to move or delete")
    if actions > 1:
        raise typer.BadParameter("--seek, --since or --delete: only one of them")
    if name is not None:
        info = _existing_cursor(log, name)
        if seek is not None:
            start, end = log.start_offset(), log.end_offset()
            _seek(log, info, parse_position(seek, start=start, end=end), consent)
        elif since is not None:
            _seek(log, info, log.offset_at(parse_past(since)), consent)
        elif delete:
            consent.ask(f"Delete cursor {name!r} of log {log.name!r}?")
            log.delete_cursor(name)
    listed = [info for info in log.cursors() if name in (None, info.name)]
    rows = [
        (
            info.name,
            info.floor,
            info.lag,
            _ranges(info.ranges),
            info.lost,
            True if info.durable else "by sections",
        )
        for info in listed
    ]
    return Printed(
        listed,
        Table(
            ("cursor", "floor", "behind", "acknowledged above the floor", "lost", "durable"),
            rows,
            none=f"cursor {safe(name)} deleted" if name else "no cursors",
        ),
    )


def _existing_cursor(log: Log, name: str) -> CursorInfo:
    for info in log.cursors():
        if info.name == name:
            return info
    raise NotFound(
        f"log {log.name!r} has no cursor {name!r}; `millstream log cursors {log.name}` lists them",
        cursor=name,
    )


def _seek(log: Log, info: CursorInfo, target: int, consent: Consent) -> None:
    if target != info.floor or info.ranges:
        consent.ask(
            f"Move cursor {info.name!r} from {info.floor} to {target}, and forget its "
            "acknowledgements above?"
        )
    log.cursor(info.name).seek(target)


def _ranges(ranges: list[tuple[int, int]]) -> str:
    texts = [f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in ranges[:RANGES_MAX]]
    if len(ranges) > RANGES_MAX:
        texts.append(f"and {len(ranges) - RANGES_MAX} more ranges")
    return ", ".join(texts)
