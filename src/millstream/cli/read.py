"""`millstream read`: records of a log, from an offset or where a cursor stands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, StorePath, opened

if TYPE_CHECKING:
    from millstream.record import Record
    from millstream.threads.database import Millstream
    from millstream.threads.log import Log

TAKEN = 500
"""Records between two acknowledgements of a cursor."""

From = Annotated[
    str | None,
    typer.Option("--from", metavar="OFFSET", help="An offset, earliest, latest, or -10."),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=0, help="At most so many records.")]
RecordsJson = Annotated[bool, typer.Option("--json", help="One JSON object per record.")]
Values = Annotated[bool, typer.Option("--values", help="Values only, as they are, one per line.")]


def read(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    store: StorePath = Path(DEFAULT_STORE),
    start: From = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="OFFSET", help="Up to, not including, an offset.")
    ] = None,
    limit: Limit = None,
    json: RecordsJson = False,
    values: Values = False,
    cursor: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this cursor has not acknowledged.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="Acknowledge what was printed; makes the cursor.")
    ] = False,
) -> None:
    """Print the records of a log: offset, time, key and value."""
    if json and values:
        raise typer.BadParameter("--json or --values, not both")
    if ack and cursor is None:
        raise typer.BadParameter("--ack needs --cursor")
    if cursor is not None and stop is not None:
        raise typer.BadParameter("--to does not go with --cursor; use --limit")
    printer = choose_printer(json=json, values=values)
    with opened(store) as ms:
        found = existing(ms, log)
        if cursor is None:
            for record in islice(_range(found, start, stop), limit):
                printer(record)
        else:
            _read_by_cursor(found, cursor, start=start, limit=limit, ack=ack, printer=printer)


def existing(ms: Millstream, name: str) -> Log:
    """The log of a name; there must be one."""
    from millstream.errors import NotFound

    log = ms.log(name)
    if log.info() is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    return log


def choose_printer(*, json: bool, values: bool) -> Callable[[Record], None]:
    """How a record is printed."""
    from millstream.cli import display

    def print_value(record: Record) -> None:
        out = sys.stdout
        if out.isatty():
            display.say(display.safe(record.value))
        else:
            out.buffer.write(record.value + b"\n")

    def print_json(record: Record) -> None:
        import msgspec

        display.say(msgspec.json.encode(display.record_json(record)).decode())

    def print_line(record: Record) -> None:
        display.say(display.record_line(record))

    return print_value if values else print_json if json else print_line


def _range(log: Log, start: str | None, stop: str | None) -> Iterator[Record]:
    from millstream.cli.arguments import parse_position

    first, end = log.start_offset(), log.end_offset()
    return log.read(
        first if start is None else parse_position(start, start=first, end=end),
        end if stop is None else parse_position(stop, start=first, end=end),
    )


def _read_by_cursor(
    log: Log,
    name: str,
    *,
    start: str | None,
    limit: int | None,
    ack: bool,
    printer: Callable[[Record], None],
) -> None:
    from millstream.cli.arguments import parse_position
    from millstream.errors import NotFound

    known = any(info.name == name for info in log.cursors())
    if not known and not ack:
        raise NotFound(f"log {log.name!r} has no cursor {name!r}; --ack makes one", name=name)
    if known and start is not None:
        raise typer.BadParameter(
            f"cursor {name!r} stands where it stands; `millstream log cursors {log.name} {name} "
            "--seek` moves it"
        )
    first, end = log.start_offset(), log.end_offset()
    cursor = log.cursor(name, start=parse_position(start or "earliest", start=first, end=end))
    left = sys.maxsize if limit is None else limit
    while left > 0 and (records := cursor.take(min(left, TAKEN))):
        _print_all(records, printer)
        if ack:
            cursor.ack(records)
        left -= len(records)


def _print_all(records: Iterable[Record], printer: Callable[[Record], None]) -> None:
    for record in records:
        printer(record)
    sys.stdout.flush()
