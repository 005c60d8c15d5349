"""`millstream log`: what logs there are, following one, and deleting records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import typer

from millstream import Log, Millstream, PartitionedLog, Record
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
from millstream.worker.stopping import stopped_by_signals

log = typer.Typer(help="List, follow, truncate and configure logs.", no_args_is_help=True)


@command(log, "log list 'orders*'", "log list orders --partitions", name="list")
def list_logs(
    ms: Millstream,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names such as 'orders*'.")
    ] = "*",
    partitions: Annotated[
        bool, typer.Option("--partitions", help="List partitions, not the logs that have them.")
    ] = False,
) -> Printed:
    """List the logs of the store.

    A log with partitions is one line, whose figures are sums over them.
    """
    found = [one for one in ms.logs(partitions=partitions) if _is_like(one.name, pattern)]
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
        for info in found
    ]
    return Printed(
        [{**msgspec.to_builtins(info), "records": len(info)} for info in found],
        Table(
            ("log", "start", "end", "records", "size", "last append", "retention"),
            rows,
            none="no logs" if pattern == "*" else f"no logs like {safe(pattern)}",
        ),
    )


def _is_like(name: str, pattern: str) -> bool:
    """Whether a log is like a pattern, or is a partition of one that is."""
    return fnmatchcase(name, pattern) or fnmatchcase(whole_of(name), pattern)


@command(log, "log create orders", "log create orders --partitions 8", create=True)
def create(
    log: LogName,
    ms: Millstream,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=PARTITIONS_MAX, help="Spread by key over so many."),
    ] = None,
    grow: Annotated[bool, typer.Option("--grow", help="Raise the number of partitions.")] = False,
) -> Printed:
    """Make an empty log, unless there is one.

    With partitions, records are spread over them by their keys.
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
    facts, parts, entries = log.info(), log.parts(), dict(log.metadata)
    assert facts is not None
    data = {
        **msgspec.to_builtins(facts),
        "records": len(facts),
        "parts": [{**msgspec.to_builtins(one), "records": len(one)} for one in parts],
        "metadata": entries,
    }
    pairs = [
        ("log", facts.name),
        ("records", len(facts)),
        ("partitions", facts.partitions),
        *(
            (
                f"partition {number}",
                f"{plural(len(one), 'record')}, {one.start_offset} to {one.end_offset}, "
                f"the end not included; {size(one.bytes)}",
            )
            for number, one in enumerate(parts)
        ),
        ("size", size(facts.bytes)),
        ("created", facts.created),
        ("last append", when(facts.timestamp)),
        ("retention", rules_text(facts.retention)),
        *((f"metadata {safe(key)}", str(value)) for key, value in entries.items()),
    ]
    return Printed(data, FactSheet(pairs))


@command(log, "log info orders")
def info(name: LogName, ms: Millstream) -> Printed:
    """Show everything about one log."""
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
        *((f"cursor {safe(c.name)}", f"floor {c.floor}, {c.lag:,} behind") for c in readers),
        *((f"metadata {safe(key)}", str(value)) for key, value in entries.items()),
    ]
    return Printed(data, FactSheet(pairs))


@command(
    log, "log tail orders", "log tail orders --from -10 --values", "log tail orders --since 1h"
)
def tail(
    log: LogName,
    ms: Millstream,
    start: Start,
    output: Output,
    limit: Limit = None,
    timeout: Annotated[float | None, duration("End after so long without a record.")] = None,
) -> None:
    """Follow a log: print records as they arrive, until Ctrl-C.

    Begins at the end; `--from -10` shows the last ten first. The log need not exist yet.
    """
    found = ms.log(log)
    records: Iterator[Record]
    try:
        records = _follow(found, start.offset(found, "latest"), timeout)
    except Partitioned:
        whole = ms.partitioned_log(log)
        records = whole.tail(start.offsets(whole, "latest"), timeout=timeout)
    left = sys.maxsize if limit is None else limit
    with stopped_by_signals(lambda: os._exit(0)):  # it only reads: it may leave wherever it is
        for record in records if left else ():
            output.print(record)
            sys.stdout.flush()
            left -= 1
            if not left:
                break


def _follow(log: Log, position: int, timeout: float | None) -> Iterator[Record]:
    """As `Log.tail`, but what was truncated meanwhile is passed over with a warning."""
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
        typer.Option("--past-end", help="The offset may lie past the end: the log goes on there."),
    ] = False,
) -> Printed:
    """Delete the records before an offset, permanently."""
    first, end = log.start_offset(), log.end_offset()
    target = parse_position(before, start=first, end=end)
    going = max(0, min(target, end) - first)
    if going and (past_end or target <= end):  # else it is refused
        what = offsets(first, first + going)
        consent.ask(f"Delete {plural(going, 'record')}, {what}, of log {log.name!r}?")
    gone = log.truncate(before=target, past_end=past_end)
    start = log.start_offset()
    return Printed(
        {"log": log.name, "truncated": gone, "start_offset": start},
        f"{plural(gone, 'record')} deleted; the log begins at {start}",
    )


@command(log, "log delete orders --yes")
def delete(log: Log, consent: Consent) -> Printed:
    """Delete a log and all that belongs to it, permanently."""
    facts = log.info()
    assert facts is not None
    count = len(facts)
    consent.ask(f"Delete log {log.name!r} with {plural(count, 'record')}?")
    gone = log.delete()
    return Printed(
        {"log": log.name, "deleted": gone, "records": count},
        f"log {safe(log.name)} deleted, with {plural(count, 'record')}",
    )


command(log, "log retention orders --age 7d --yes", "log retention orders --keep-all")(retention)
command(log, "log cursors orders", "log cursors orders billing --seek -10 --yes")(cursors)
command(log, "log metadata orders", "log metadata orders team blue")(metadata)
command(log, "log fork orders trial")(fork)
command(log, "log merge trial", "log merge trial --on-fork rebase")(merge)
command(log, "log owner orders", "log owner orders --take-over --yes")(owner)
