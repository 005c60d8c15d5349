"""`millstream log`: what logs there are, following one, and making one forget."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm
from millstream.cli.cursors import cursors
from millstream.cli.fork import fork, merge, owner
from millstream.cli.metadata import metadata
from millstream.cli.read import From, Limit, RecordsJson, Values, choose_printer, existing
from millstream.cli.retention import retention

if TYPE_CHECKING:
    from millstream.record import Record
    from millstream.threads.log import Log

log = typer.Typer(help="List, follow, trim and configure logs.", no_args_is_help=True)

LogName = Annotated[str, typer.Argument(metavar="LOG", help="The log.")]


@log.command("list")
def list_logs(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names such as 'orders*'.")
    ] = "*",
    store: StorePath = Path(DEFAULT_STORE),
    json: AsJson = False,
) -> None:
    """List the logs of the store."""
    from millstream.cli import display

    with opened(store) as ms:
        found = [info for info in ms.logs() if fnmatchcase(info.name, pattern)]
    if json:
        display.say_json([display.log_json(info) for info in found])
        return
    if not found:
        display.note("no logs" if pattern == "*" else f"no logs like {pattern}")
        return
    display.say_table(
        ("log", "start", "end", "records", "size", "last append", "retention"),
        [
            (
                display.safe(info.name),
                str(info.start_offset),
                str(info.end_offset),
                f"{len(info)}",
                display.size(info.bytes),
                display.when(info.timestamp),
                display.rules(info.retention),
            )
            for info in found
        ],
        numbers=("start", "end", "records", "size", "last append"),
    )


@log.command()
def info(log: LogName, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Show everything about one log."""
    from millstream.cli import display

    with opened(store) as ms:
        found = existing(ms, log)
        facts = found.info()
        assert facts is not None
        readers = found.cursors()
        entries = dict(found.metadata)
        parent = found.parent()
    if json:
        listed = [display.cursor_json(cursor) for cursor in readers]
        display.say_json(
            {
                **display.log_json(facts),
                "parent": parent,
                "cursors": listed,
                "metadata": entries,
            }
        )
        return
    display.say_facts(
        [
            ("log", display.safe(facts.name)),
            ("records", f"{len(facts):,}"),
            ("offsets", f"{facts.start_offset} to {facts.end_offset}, the end not included"),
            ("size", display.size(facts.bytes)),
            ("created", display.time_of(facts.created)),
            ("last append", display.time_of(facts.timestamp)),
            ("retention", display.rules(facts.retention)),
            *([("forked from", display.safe(parent))] if parent is not None else []),
            *(
                (f"cursor {display.safe(c.name)}", f"floor {c.floor}, {c.lag:,} behind")
                for c in readers
            ),
            *(
                (f"metadata {display.safe(key)}", display.safe(str(value)))
                for key, value in entries.items()
            ),
        ]
    )


@log.command()
def tail(
    log: LogName,
    store: StorePath = Path(DEFAULT_STORE),
    start: From = None,
    limit: Limit = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End after so long without a record.")
    ] = None,
    json: RecordsJson = False,
    values: Values = False,
) -> None:
    """Follow a log: print records as they arrive, until Ctrl-C.

    Begins at the end; `--from -10` shows the last ten first. The log need not exist yet.
    """
    from millstream.cli.arguments import parse_duration, parse_position

    printer = choose_printer(json=json, values=values)
    with opened(store) as ms:
        found = ms.log(log)
        first, end = found.start_offset(), found.end_offset()
        position = parse_position(start or "latest", start=first, end=end)
        left = limit
        wait_s = None if timeout is None else parse_duration(timeout)
        with _left_by_interrupt():
            for record in _follow(found, position, wait_s) if left != 0 else ():
                printer(record)
                sys.stdout.flush()
                if left is not None and (left := left - 1) == 0:
                    break


@contextmanager
def _left_by_interrupt() -> Iterator[None]:
    """Ctrl-C is how one ends a tail: it only reads, so it leaves at once, wherever it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(log: Log, position: int, timeout: float | None) -> Iterator[Record]:
    """As `Log.tail`, but what was truncated meanwhile is passed over with a warning."""
    from millstream.cli.display import note, offsets
    from millstream.errors import Truncated

    while True:
        try:
            for record in log.tail(position, timeout=timeout):
                position = record.offset + 1
                yield record
            return
        except Truncated as error:
            note(f"{offsets(position, error.start)} were truncated before they were read")
            position = error.start


@log.command()
def truncate(
    log: LogName,
    before: Annotated[str, typer.Option(metavar="OFFSET", help="The first offset to keep.")],
    store: StorePath = Path(DEFAULT_STORE),
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete the records before an offset, permanently."""
    from millstream.cli import display
    from millstream.cli.arguments import parse_position

    with opened(store) as ms:
        found = existing(ms, log)
        first, end = found.start_offset(), found.end_offset()
        target = parse_position(before, start=first, end=end)
        going = max(0, min(target, end) - first)
        if going:
            what = display.offsets(first, first + going)
            confirm(f"Forget {display.plural(going, 'record')}, {what}, of {log!r}?", yes=yes)
        gone = found.truncate(before=target)
        start = found.start_offset()
    if json:
        display.say_json({"log": log, "truncated": gone, "start_offset": start})
    else:
        display.say(f"{display.plural(gone, 'record')} forgotten; the log begins at {start}")


@log.command()
def delete(
    log: LogName, store: StorePath = Path(DEFAULT_STORE), yes: Yes = False, json: AsJson = False
) -> None:
    """Delete a log with its records, cursors and metadata, permanently."""
    from millstream.cli import display

    with opened(store) as ms:
        found = existing(ms, log)
        count = len(found)
        confirm(f"Forget log {log!r} with {display.plural(count, 'record')}?", yes=yes)
        gone = found.delete()
    if json:
        display.say_json({"log": log, "deleted": gone, "records": count})
    else:
        display.say(f"log {display.safe(log)} is gone, with {display.plural(count, 'record')}")


log.command()(retention)
log.command()(cursors)
log.command()(metadata)
log.command()(fork)
log.command()(merge)
log.command()(owner)
