"""`millstream import`: records of files, and messages of other systems, each stored once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from millstream import Millstream
from millstream.cli.display import Printed, PrintedLine, plural, progress, safe
from millstream.errors import InvalidInput
from millstream.exchange.foreign.kinds import SourceKind
from millstream.exchange.formats import Format, format_of, reader_of

STANDARD = "-"
"""The name of standard input."""


@dataclass(frozen=True)
class ForeignSource:
    """The options for the queue of another system."""

    kind: Annotated[
        SourceKind | None,
        typer.Option(
            "--from",
            metavar="SYSTEM",
            help="Move waiting messages of a queue: redis-list, rq, huey, celery-redis or sqs.",
        ),
    ] = None
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --from: the queue to store into; created if needed."
        ),
    ] = None
    source_queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --from: the other system's queue or list; default: --queue."
        ),
    ] = None


def import_records(
    ms: Millstream,
    foreign: ForeignSource,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Files of an export; - is stdin. With --from, the address."
        ),
    ],
    log: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One log for all records; default: that of each record."),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(metavar="FORMAT", help="jsonl, csv or parquet; default: by the suffix."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad lines, and count them.")
    ] = False,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="TEXT",
            help="The identity by which a repeat is recognised; default: the bytes of the file.",
        ),
    ] = None,
) -> Printed:
    """Store the records of files in logs. Keys, headers and timestamps stay.

    A file is checked before anything is stored: a bad line is an error with its number. A repeated
    import of the same file stores nothing, and an interrupted import continues, up to a week later.
    Standard input is stored as it is read; without --id, a repeat stores it again. With --from, the
    waiting messages of another system's queue move into a queue of the store.
    """
    if foreign.kind is not None:
        if log is not None or format is not None or skip_bad or id is not None or len(files) != 1:
            raise typer.BadParameter("--from takes one address, --queue and --source-queue only")
        return _moved(ms, foreign.kind, files[0], foreign)
    if foreign.queue is not None or foreign.source_queue is not None:
        raise typer.BadParameter("--queue and --source-queue are for --from; --log names a log")
    if id is not None and len(files) > 1:
        raise typer.BadParameter("--id is for a single file: the identity names its records")
    return _imported(ms, files, log=log, format=format, skip_bad=skip_bad, id=id)


def _imported(
    ms: Millstream,
    files: list[str],
    *,
    log: str | None,
    format: Format | None,
    skip_bad: bool,
    id: str | None,
) -> Printed:
    """Check every file before the first record is stored; then store the records."""
    from millstream.exchange.importing import ImportSummary, checked_file, import_file

    readers = [reader_of(format_of(name, format)) for name in files]
    summary = ImportSummary()
    with ExitStack() as stack:
        streams = [
            sys.stdin.buffer if name == STANDARD else stack.enter_context(open(name, "rb"))
            for name in files
        ]
        heard = stack.enter_context(progress("importing"))
        ready = []
        for name, stream, read in zip(files, streams, readers, strict=True):
            with _naming(name):
                ready.append(
                    checked_file(
                        stream, read, needs_log=log is None, skip_bad=skip_bad, heard=heard
                    )
                )
        for name, file in zip(files, ready, strict=True):
            with _naming(name):
                import_file(ms, file, summary, log=log, identity=id, skip_bad=skip_bad, heard=heard)
    return Printed(summary, *_shown(summary))


def _moved(ms: Millstream, kind: SourceKind, address: str, foreign: ForeignSource) -> Printed:
    """Move the waiting messages of another system's queue."""
    from millstream.exchange.foreign.moving import move_messages, open_source

    if foreign.queue is None:
        raise typer.BadParameter("--from needs --queue, the queue to store into")
    source = open_source(kind, address, foreign.source_queue or foreign.queue)
    with progress("messages") as heard:
        summary = move_messages(ms, foreign.queue, source, heard)
    shown: list[str | PrintedLine] = [
        f"{plural(summary.moved, 'message')} moved into queue {safe(summary.queue)}"
    ]
    if not summary.repeats_are_dropped:
        text = (
            f"queue {safe(summary.queue)} has no dedup id: after a crash of this command a message may "
            "be there twice; `millstream queue alter --dedup-by HEADER` prevents that"
        )
        shown.append(PrintedLine(text, "yellow", note=True))
    return Printed(summary, *shown)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Name the file in an error about its content."""
    try:
        yield
    except InvalidInput as error:
        if file == STANDARD:
            raise
        raise InvalidInput(f"{file}: {error}") from error


def _shown(summary: Any) -> list[str | PrintedLine]:
    shown: list[str | PrintedLine] = [
        f"{plural(summary.stored, 'record')} stored in {plural(len(summary.logs), 'log')}"
    ]
    if summary.repeated:
        shown.append(f"stored before: {plural(summary.repeated, 'record')}")
    if summary.bad:
        lines = "; ".join(f"line {row.row}: {row.reason}" for row in summary.bad_rows)
        text = f"{plural(summary.bad, 'bad line')} left out: {safe(lines)}"
        shown.append(PrintedLine(text, "yellow", note=True))
    return shown
