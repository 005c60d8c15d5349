"""`millstream read`: print records of a log, from an offset, a time or a cursor."""

from __future__ import annotations

import sys
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
    typer.Option(metavar="N", min=0, max=NUMBER_MAX, help="Most records."),
]


@dataclass(frozen=True)
class Start:
    """The start of reading."""

    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="An offset, earliest, latest, or -10."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From the first record at or after a time: ISO 8601, or an age such as 15m.",
        ),
    ] = None
    last: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=NUMBER_MAX, help="From the last N records on."),
    ] = None

    def __post_init__(self) -> None:
        if sum(option is not None for option in (self.start, self.since, self.last)) > 1:
            raise typer.BadParameter("--from, --since or --last: only one of them")

    def __bool__(self) -> bool:
        """Whether a start was given."""
        return self.start is not None or self.since is not None or self.last is not None

    def offset(self, log: Log, otherwise: str = "earliest") -> int:
        """Return the offset of the start."""
        if self.since is not None:
            return log.offset_at(parse_past(self.since))
        first, end = log.start_offset(), log.end_offset()
        if self.last is not None:
            return max(first, end - self.last)
        return parse_position(self.start or otherwise, start=first, end=end)

    def offsets(self, log: PartitionedLog, otherwise: str = "earliest") -> dict[int, int]:
        """Return the offset of the start in each partition."""
        if self.start not in (None, "earliest", "latest"):
            raise one_partition(log.name, "an offset in --from")
        if self.last is not None:
            raise one_partition(log.name, "--last")
        partitions = [log.partition(number) for number in range(log.partitions)]
        return {number: self.offset(each, otherwise) for number, each in enumerate(partitions)}


def one_partition(log: str, option: str) -> typer.BadParameter:
    """Return the error for an option that concerns the offsets of a single log."""
    return typer.BadParameter(
        f"log {log!r} has partitions: {option} is for a single partition, such as {partition_name(log, 0)}"
    )


def read(
    name: LogName,
    ms: Millstream,
    start: Start,
    output: Output,
    stop: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET", help="Read up to this offset, exclusive."),
    ] = None,
    limit: Limit = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read what this cursor has not acknowledged.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="Acknowledge printed records; creates the cursor.")
    ] = False,
) -> None:
    """Print the records of a log: offset, time, key and value.

    For a log with partitions all partitions are printed: `3:10` is offset 10 of partition 3.
    """
    if ack and cursor is None:
        raise typer.BadParameter("--ack needs --cursor")
    log = existing_log(ms, name)
    if cursor is not None and stop is not None:
        raise typer.BadParameter("--to cannot be combined with --cursor; use --limit")
    if cursor is not None:
        _read_by_cursor(log, cursor, start=start, limit=limit, ack=ack, output=output)
        return
    try:
        records = _range(log, start, stop)
    except Partitioned:
        if stop is not None:
            raise one_partition(name, "--to") from None
        partitioned = ms.partitioned_log(name)
        records = partitioned.read(start.offsets(partitioned))
    for record in islice(records, limit):
        output.print(record)


def _range(log: Log, start: Start, stop: str | None) -> Iterator[Record]:
    first, end = log.start_offset(), log.end_offset()
    last = end if stop is None else parse_position(stop, start=first, end=end)
    return log.read(start.offset(log), last)


def _read_by_cursor(
    log: Log, name: str, *, start: Start, limit: int | None, ack: bool, output: Output
) -> None:
    exists = any(info.name == name for info in log.cursors())
    if not exists and not ack:
        raise NotFound(f"log {log.name!r} has no cursor {name!r}; --ack creates one", name=name)
    if exists and start:
        raise typer.BadParameter(
            f"cursor {name!r} has its own position; `millstream log cursors {log.name} {name} "
            "--seek` or `--since` moves it"
        )
    cursor = log.cursor(name, start=start.offset(log))
    remaining = sys.maxsize if limit is None else limit
    while remaining > 0 and (records := cursor.take(min(remaining, TAKEN))):
        for record in records:
            output.print(record)
        sys.stdout.flush()
        if ack:
            cursor.ack(records)
        remaining -= len(records)
    for first, stop in cursor.lost():
        note(
            f"log {safe(log.name)} had deleted {offsets(first, stop)} before cursor {safe(name)} "
            "acknowledged them"
        )
