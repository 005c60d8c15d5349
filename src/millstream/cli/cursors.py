"""`millstream log cursors`: how far each reader of a log has come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm
from millstream.cli.read import existing

if TYPE_CHECKING:
    from millstream.record import CursorInfo
    from millstream.threads.log import Log


def cursors(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    name: Annotated[str | None, typer.Argument(metavar="CURSOR", help="Only this one.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    seek: Annotated[
        str | None,
        typer.Option(metavar="OFFSET", help="Set its floor: an offset, earliest, latest, or -10."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget it.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """List the cursors of a log, or move or delete one."""
    from millstream.cli import display

    if name is None and (seek is not None or delete):
        raise typer.BadParameter("name the cursor that is to be moved or deleted")
    if seek is not None and delete:
        raise typer.BadParameter("--seek or --delete, not both")
    with opened(store) as ms:
        found = existing(ms, log)
        if name is not None:
            info = _existing_cursor(found, name)
            if seek is not None:
                _seek(found, info, seek, yes=yes)
            elif delete:
                confirm(f"Forget cursor {name!r} of {log!r}?", yes=yes)
                found.delete_cursor(name)
        listed = [c for c in found.cursors() if name is None or c.name == name]
    if json:
        display.say_json([display.cursor_json(info) for info in listed])
    elif listed:
        _show(listed)
    else:
        display.note(f"cursor {display.safe(name)} is gone" if name else "no cursors")


def _existing_cursor(log: Log, name: str) -> CursorInfo:
    from millstream.errors import NotFound

    for info in log.cursors():
        if info.name == name:
            return info
    raise NotFound(
        f"log {log.name!r} has no cursor {name!r}; `millstream log cursors {log.name}` lists them",
        cursor=name,
    )


def _seek(log: Log, info: CursorInfo, seek: str, *, yes: bool) -> None:
    from millstream.cli.arguments import parse_position

    target = parse_position(seek, start=log.start_offset(), end=log.end_offset())
    ahead = sum(stop - start for start, stop in info.ranges)
    if target != info.floor or ahead:
        confirm(
            f"Move cursor {info.name!r} from {info.floor} to {target}, and forget what it has "
            "acknowledged above?",
            yes=yes,
        )
    log.cursor(info.name).seek(target)


def _show(listed: list[CursorInfo]) -> None:
    from millstream.cli import display

    display.say_table(
        ("cursor", "floor", "behind", "acknowledged above the floor", "durable"),
        [
            (
                display.safe(info.name),
                str(info.floor),
                str(info.lag),
                _ranges(info.ranges),
                "yes" if info.durable else "by sections",
            )
            for info in listed
        ],
        numbers=("floor", "behind"),
    )


def _ranges(ranges: list[tuple[int, int]], shown: int = 5) -> str:
    parts = [f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in ranges[:shown]]
    if len(ranges) > shown:
        parts.append(f"and {len(ranges) - shown} more ranges")
    return ", ".join(parts) or "-"
