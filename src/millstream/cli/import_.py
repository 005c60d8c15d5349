"""`millstream import`: store the records of files in logs, each record once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from millstream import Millstream
from millstream.cli.display import Printed, PrintedLine, plural, progress, safe
from millstream.errors import InvalidInput
from millstream.exchange.formats import Format, format_of, reader_of

STANDARD = "-"
"""The name of standard input."""


def import_records(
    ms: Millstream,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files of an export; - is stdin.")
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
    """Store the records of files in logs, with their keys, headers and timestamps.

    A file is checked before anything is stored: a bad line is an error with its number. A repeated
    import of the same file stores nothing, and an interrupted import continues, up to a week later.
    Standard input is stored as it is read; without --id, a repeat stores it again.
    """
    from millstream.exchange.importing import ImportSummary, checked_file, import_file

    if id is not None and len(files) > 1:
        raise typer.BadParameter("--id is for a single file: the identity names its records")
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
        shown.append(f"{plural(summary.repeated, 'record')} were stored before")
    if summary.bad:
        lines = "; ".join(f"line {row.row}: {row.reason}" for row in summary.bad_rows)
        text = f"{plural(summary.bad, 'bad line')} left out: {safe(lines)}"
        shown.append(PrintedLine(text, "yellow", note=True))
    return shown
