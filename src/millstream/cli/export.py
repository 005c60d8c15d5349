"""`millstream export`: write records of logs to a file or to standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream import Millstream
from millstream.cli.arguments import parse_past
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, note, plural, progress, safe, say, size
from millstream.cli.names import completed
from millstream.exchange.formats import Format, format_of

if TYPE_CHECKING:
    from millstream.exchange.export import ExportSummary

STANDARD = "-"
"""The name of standard input and output."""


def export(
    ms: Millstream,
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs, or patterns such as 'device/*'.",
            autocompletion=completed(Millstream.logs),
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file; - is standard output.")
    ] = STANDARD,
    format: Annotated[
        Format | None,
        typer.Option(metavar="FORMAT", help="jsonl, csv or parquet; default: by the suffix."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="FILTER", help="Only records that match.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only records since a time: ISO 8601, or an age: 15m."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only records before a time, or an age.")
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option(metavar="N", help="From this offset; -10: the last ten.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", help="Up to this offset, exclusive.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Write records of logs to a file: JSON Lines, CSV or Parquet.

    The file keeps keys, headers, timestamps and the exact bytes of values; `millstream import` reads
    it. The file appears when it is complete. Records are streamed, so a log may be larger than the
    memory. Parquet needs pyarrow: pip install 'millstream[arrow]'.
    """
    from millstream.exchange.export import export as write_export
    from millstream.exchange.export import replaced_file
    from millstream.exchange.selection import RecordSelection
    from millstream.filters.filter import parse

    chosen = format_of(output, format)
    selection = RecordSelection(
        start=from_offset,
        stop=to_offset,
        since_ms=None if since is None else parse_past(since),
        until_ms=None if until is None else parse_past(until),
        filter=None if where is None else parse(where),
    )
    with progress("exporting") as heard:
        if output == STANDARD:
            if chosen is Format.PARQUET and sys.stdout.isatty():
                raise typer.BadParameter("Parquet is not for a terminal; use --output FILE")
            stream = sys.stdout.buffer
            summary = write_export(
                ms, logs, stream, format=chosen, selection=selection, heard=heard
            )
            stream.flush()
        else:
            with replaced_file(Path(output)) as file:
                summary = write_export(
                    ms, logs, file, format=chosen, selection=selection, heard=heard
                )
    _show(summary, output, as_json=json)


def _show(summary: ExportSummary, output: str, *, as_json: bool) -> None:
    """Print the summary; on standard error if the records went to standard output."""
    text = f"{plural(summary.records, 'record')} ({size(summary.bytes)}) of "
    text += f"{plural(len(summary.logs), 'log')} exported"
    if output != STANDARD:
        text += f" to {safe(output)}"
    if as_json:
        text = json_text(summary)
    (note if output == STANDARD else say)(text)
