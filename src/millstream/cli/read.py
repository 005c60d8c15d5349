"""`millstream read`: records of a log, from an offset or a time, or where a cursor stands."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import typer

from millstream import Log, Millstream, PartitionedLog, Record
from millstream.cli.arguments import parse_past, parse_position
from millstream.cli.display import note, offsets, safe
from millstream.cli.names import LogName
from millstream.cli.output import Output
from millstream.cli.place import existing_log
from millstream.errors import NotFound, Partitioned
from millstream.log.model.names import NUMBER_MAX
from millstream.partitioning import partition_name

TAKEN = 500
"""Records between two acknowledgements of a cursor."""

Limit = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, max=NUMBER_MAX, help="At most so many records."),
]


@dataclass(frozen=True)
class Start:
    """Where reading begins."""

    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="An offset, earliest, latest, or -10."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Appended since then: ISO 8601, or how long ago: 15m."),
    ] = None

    def __post_init__(self) -> None:
        if self.start is not None and self.since is not None:
            raise typer.BadParameter("--from or --since, not both")

    def __bool__(self) -> bool:
        """Whether it was said."""
        return self.start is not None or self.since is not None

    def offset(self, log: Log, otherwise: str = "earliest") -> int:
        """The offset that is meant."""
        first, end = log.start_offset(), log.end_offset()
        if self.since is None:
            return parse_position(self.start or otherwise, start=first, end=end)
        past_ms = parse_past(self.since)
        return bisect_left(range(end), past_ms, lo=first, key=lambda at: _appended(log, at))

    def offsets(self, log: PartitionedLog, otherwise: str = "earliest") -> dict[int, int]:
        """The offset that is meant in each partition."""
        if self.start not in (None, "earliest", "latest"):
            raise one_partition(log.name, "an offset in --from")
        parts = [log.partition(number) for number in range(log.partitions)]
        return {number: self.offset(part, otherwise) for number, part in enumerate(parts)}


def one_partition(log: str, option: str) -> typer.BadParameter:
    """The error for an option that is about the offsets of one log."""
    return typer.BadParameter(
        f"log {log!r} has partitions: {option} is for one of them, such as {partition_name(log, 0)}"
    )


def _appended(log: Log, offset: int) -> int:
    """When a record was appended; one that was truncated meanwhile is older than any other."""
    record = log.get(offset)
    return 0 if record is None else record.appended


def read(
    name: LogName,
    ms: Millstream,
    start: Start,
    output: Output,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="OFFSET", help="Up to, not including, an offset.")
    ] = None,
    limit: Limit = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this cursor has not acknowledged.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="Acknowledge what was printed; creates the cursor.")
    ] = False,
) -> None:
    """Print the records of a log: offset, time, key and value.

    Of a log with partitions all are printed, and `3:10` is the offset 10 of partition 3.
    """
    if ack and cursor is None:
        raise typer.BadParameter("--ack needs --cursor")
    log = existing_log(ms, name)
    if cursor is not None and stop is not None:
        raise typer.BadParameter("--to does not go with --cursor; use --limit")
    if cursor is not None:
        _read_by_cursor(log, cursor, start=start, limit=limit, ack=ack, output=output)
        return
    try:
        found = _range(log, start, stop)
    except Partitioned:
        if stop is not None:
            raise one_partition(name, "--to") from None
        whole = ms.partitioned_log(name)
        found = whole.read(start.offsets(whole))
    for record in islice(found, limit):
        output.print(record)


def _range(log: Log, start: Start, stop: str | None) -> Iterator[Record]:
    first, end = log.start_offset(), log.end_offset()
    last = end if stop is None else parse_position(stop, start=first, end=end)
    return log.read(start.offset(log), last)


def _read_by_cursor(
    log: Log, name: str, *, start: Start, limit: int | None, ack: bool, output: Output
) -> None:
    known = any(info.name == name for info in log.cursors())
    if not known and not ack:
        raise NotFound(f"log {log.name!r} has no cursor {name!r}; --ack creates one", name=name)
    if known and start:
        raise typer.BadParameter(
            f"cursor {name!r} stands where it stands; `millstream log cursors {log.name} {name} "
            "--seek` moves it"
        )
    cursor = log.cursor(name, start=start.offset(log))
    left = sys.maxsize if limit is None else limit
    while left > 0 and (records := cursor.take(min(left, TAKEN))):
        for record in records:
            output.print(record)
        sys.stdout.flush()
        if ack:
            cursor.ack(records)
        left -= len(records)
    for first, stop in cursor.lost():
        note(
            f"log {safe(log.name)} had forgotten {offsets(first, stop)} before cursor {safe(name)} "
            "acknowledged them"
        )
