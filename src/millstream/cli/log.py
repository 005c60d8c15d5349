"""`millstream log`: what logs there are, following one, and deleting records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import typer

from millstream import Log, Millstream, Record
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
from millstream.cli.read import Limit, Start
from millstream.cli.retention import retention, rules_text
from millstream.errors import Truncated
from millstream.worker.stopping import stopped_by_signals

log = typer.Typer(help="List, follow, truncate and configure logs.", no_args_is_help=True)


@command(log, "log list 'orders*'", name="list")
def list_logs(
    ms: Millstream,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names such as 'orders*'.")
    ] = "*",
) -> Printed:
    """List the logs of the store."""
    found = [info for info in ms.logs() if fnmatchcase(info.name, pattern)]
    rows = [
        (
            info.name,
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


@command(log, "log info orders")
def info(log: Log) -> Printed:
    """Show everything about one log."""
    facts = log.info()
    assert facts is not None
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
    position = start.offset(found, "latest")
    left = sys.maxsize if limit is None else limit
    with stopped_by_signals(lambda: os._exit(0)):  # it only reads: it may leave wherever it is
        for record in _follow(found, position, timeout) if left else ():
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
) -> Printed:
    """Delete the records before an offset, permanently."""
    first, end = log.start_offset(), log.end_offset()
    target = parse_position(before, start=first, end=end)
    going = max(0, min(target, end) - first)
    if going:
        what = offsets(first, first + going)
        consent.ask(f"Delete {plural(going, 'record')}, {what}, of log {log.name!r}?")
    gone = log.truncate(before=target)
    start = log.start_offset()
    return Printed(
        {"log": log.name, "truncated": gone, "start_offset": start},
        f"{plural(gone, 'record')} deleted; the log begins at {start}",
    )


@command(log, "log delete orders --yes")
def delete(log: Log, consent: Consent) -> Printed:
    """Delete a log and all that belongs to it, permanently."""
    count = len(log)
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
