"""`millstream log`: list, create, follow, truncate and delete logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import typer

from millstream import CursorInfo, Log, Millstream, PartitionedLog, Record
from millstream.cli.arguments import duration, parse_position
from millstream.cli.command import Consent, command
from millstream.cli.cursors import cursors
from millstream.cli.display import (
    FactSheet,
    Printed,
    Table,
    note,
    offsets,
    plural,
    safe,
    size,
    when,
)
from millstream.cli.fork import fork, merge, owner
from millstream.cli.metadata import metadata
from millstream.cli.names import LogName
from millstream.cli.output import Output
from millstream.cli.place import existing_log
from millstream.cli.read import Limit, Start
from millstream.cli.retention import retention, rules_text
from millstream.errors import Partitioned, Truncated
from millstream.log.commands import CreateLog
from millstream.partitioning import PARTITIONS_MAX, whole_of
from millstream.worker.stop_signals import stopped_by_signals

log = typer.Typer(help="List, follow, truncate and configure logs.", no_args_is_help=True)


@command(log, "log list 'orders*'", "log list orders --partitions", name="list")
def list_logs(
    ms: Millstream,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names such as 'orders*'.")
    ] = "*",
    partitions: Annotated[
        bool, typer.Option("--partitions", help="List partitions instead of their logs.")
    ] = False,
) -> Printed:
    """List the logs of the store.

    A log with partitions is one line with the sums of its partitions.
    """
    infos = [info for info in ms.logs(partitions=partitions) if _is_like(info.name, pattern)]
    rows = [
        (
            info.name + (f" ({plural(info.partitions, 'partition')})" if info.partitions else ""),
            info.start_offset,
            info.end_offset,
            len(info),
            size(info.bytes),
            when(info.timestamp),
            rules_text(info.retention),
        )
        for info in infos
    ]
    return Printed(
        [{**msgspec.to_builtins(info), "records": len(info)} for info in infos],
        Table(
            ("log", "start", "end", "records", "size", "last append", "retention"),
            rows,
            none="no logs" if pattern == "*" else f"no logs like {safe(pattern)}",
        ),
    )


def _is_like(name: str, pattern: str) -> bool:
    """Whether a log, or the log of a partition, matches a pattern."""
    return fnmatchcase(name, pattern) or fnmatchcase(whole_of(name), pattern)


@command(log, "log create orders", "log create orders --partitions 8", create=True)
def create(
    log: LogName,
    ms: Millstream,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=PARTITIONS_MAX, help="Spread records over N logs by key."
        ),
    ] = None,
    grow: Annotated[
        bool, typer.Option("--grow", help="Add partitions to an existing log.")
    ] = False,
) -> Printed:
    """Create an empty log, if it does not exist.

    With partitions, records are spread over them by key.
    """
    if grow and partitions is None:
        raise typer.BadParameter("--grow needs --partitions")
    if partitions is None:
        ms.session.execute(CreateLog(log))
    elif grow:
        ms.partitioned_log(log).add_partitions(partitions)
    else:
        ms.log(log, partitions=partitions).create()
    facts = ms.log(log).info()
    assert facts is not None
    count = f" with {plural(facts.partitions, 'partition')}" if facts.partitions else ""
    return Printed(
        {"log": log, "partitions": facts.partitions, "records": len(facts)},
        f"there is a log {safe(log)}{count}",
    )


def _info_of_partitions(log: PartitionedLog) -> Printed:
    facts, partitions, entries = log.info(), log.parts(), dict(log.metadata)
    assert facts is not None
    data = {
        **msgspec.to_builtins(facts),
        "records": len(facts),
        "parts": [
            {**msgspec.to_builtins(part_info), "records": len(part_info)}
            for part_info in partitions
        ],
        "metadata": entries,
    }
    pairs = [
        ("log", facts.name),
        ("records", len(facts)),
        ("partitions", facts.partitions),
        *(
            (
                f"partition {number}",
                f"{plural(len(part_info), 'record')}, {part_info.start_offset} to {part_info.end_offset}, "
                f"the end not included; {size(part_info.bytes)}",
            )
            for number, part_info in enumerate(partitions)
        ),
        ("size", size(facts.bytes)),
        ("created", facts.created),
        ("last append", when(facts.timestamp)),
        ("retention", rules_text(facts.retention)),
        *((f"metadata {safe(key)}", str(value)) for key, value in entries.items()),
    ]
    return Printed(data, FactSheet(pairs))


def _progress_text(cursor: CursorInfo) -> str:
    lost = f", {plural(cursor.lost, 'record')} lost to retention" if cursor.lost else ""
    return f"floor {cursor.floor}, {cursor.lag:,} behind{lost}"


@command(log, "log info orders")
def info(name: LogName, ms: Millstream) -> Printed:
    """Show all facts about a log."""
    log = existing_log(ms, name)
    facts = log.info()
    assert facts is not None
    if facts.partitions:
        return _info_of_partitions(ms.partitioned_log(name))
    readers, entries, parent = log.cursors(), dict(log.metadata), log.parent()
    data = {
        **msgspec.to_builtins(facts),
        "records": len(facts),
        "parent": parent,
        "cursors": readers,
        "metadata": entries,
    }
    pairs = [
        ("log", facts.name),
        ("records", len(facts)),
        ("offsets", f"{facts.start_offset} to {facts.end_offset}, the end not included"),
        ("size", size(facts.bytes)),
        ("created", facts.created),
        ("last append", when(facts.timestamp)),
        ("retention", rules_text(facts.retention)),
        *([("forked from", parent)] if parent is not None else []),
        *((f"cursor {safe(c.name)}", _progress_text(c)) for c in readers),
        *((f"metadata {safe(key)}", str(value)) for key, value in entries.items()),
    ]
    return Printed(data, FactSheet(pairs))


@command(log, "log tail orders", "log tail orders --last 10 --values", "log tail orders --since 1h")
def tail(
    log: LogName,
    ms: Millstream,
    start: Start,
    output: Output,
    limit: Limit = None,
    timeout: Annotated[float | None, duration("End after this long without a record.")] = None,
) -> None:
    """Follow a log: print new records, until Ctrl-C.

    Starts at the end; `--last 10` prints the last ten records first. The log need not exist yet.
    """
    plain_log = ms.log(log)
    records: Iterator[Record]
    try:
        records = _follow(plain_log, start.offset(plain_log, "latest"), timeout)
    except Partitioned:
        partitioned = ms.partitioned_log(log)
        records = partitioned.tail(start.offsets(partitioned, "latest"), timeout=timeout)
    remaining = sys.maxsize if limit is None else limit
    with stopped_by_signals(lambda: os._exit(0)):  # the command only reads: it may end anywhere
        for record in records if remaining else ():
            output.print(record)
            sys.stdout.flush()
            remaining -= 1
            if not remaining:
                break


def _follow(log: Log, position: int, timeout: float | None) -> Iterator[Record]:
    """Yield records like `Log.tail`, but skip truncated records with a warning."""
    while True:
        try:
            for record in log.tail(position, timeout=timeout):
                position = record.offset + 1
                yield record
            return
        except Truncated as error:
            note(f"{offsets(position, error.start)} were truncated before they were read")
            position = error.start


@command(log, "log truncate orders --before 1000 --yes", "log truncate orders --before -100")
def truncate(
    log: Log,
    before: Annotated[str, typer.Option(metavar="OFFSET", help="The first offset to keep.")],
    consent: Consent,
    past_end: Annotated[
        bool,
        typer.Option(
            "--past-end", help="The offset may lie beyond the end: the log continues there."
        ),
    ] = False,
) -> Printed:
    """Delete the records before an offset, permanently."""
    first, end = log.start_offset(), log.end_offset()
    target = parse_position(before, start=first, end=end)
    count = max(0, min(target, end) - first)
    if count and (past_end or target <= end):  # else the truncation is refused
        range_text = offsets(first, first + count)
        consent.ask(f"Delete {plural(count, 'record')}, {range_text}, of log {log.name!r}?")
    deleted = log.truncate(before=target, past_end=past_end)
    start = log.start_offset()
    return Printed(
        {"log": log.name, "truncated": deleted, "start_offset": start},
        f"{plural(deleted, 'record')} deleted; the log starts at {start}",
    )


@command(log, "log delete orders --yes")
def delete(log: Log, consent: Consent) -> Printed:
    """Delete a log with its cursors and metadata, permanently."""
    facts = log.info()
    assert facts is not None
    count = len(facts)
    consent.ask(f"Delete log {log.name!r} with {plural(count, 'record')}?")
    deleted = log.delete()
    return Printed(
        {"log": log.name, "deleted": deleted, "records": count},
        f"log {safe(log.name)} deleted, with {plural(count, 'record')}",
    )


command(log, "log retention orders --age 7d --yes", "log retention orders --keep-all")(retention)
command(log, "log cursors orders", "log cursors orders billing --since 1h --yes")(cursors)
command(log, "log metadata orders", "log metadata orders team blue")(metadata)
command(log, "log fork orders trial")(fork)
command(log, "log merge trial", "log merge trial --on-fork rebase")(merge)
command(log, "log owner orders", "log owner orders --take-over --yes")(owner)
