"""`millstream spark run`: a command for each pipeline on Spark.

The options of a pipeline are the fields of a struct. A command passes only the typed options, so
that the pipeline's own defaults apply; the struct's defaults are shown in the help, and a test
compares both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Meta, Struct

from millstream.cli.command import command
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import (
    FactSheet,
    Printed,
    PrintedLine,
    Table,
    plural,
    size,
)
from millstream.cli.names import LogName, QueueName
from millstream.cli.place import StorePlace
from millstream.cli.spark_job import SparkJob

EXIT_LOSSES = 3
"""Done, except for unreadable records: they were left out, and named."""

LOSSES_SHOWN = 20
DAY_S = 86_400.0

spark = typer.Typer(help="Pipelines on Spark.", no_args_is_help=True)
run = typer.Typer(
    help="Run a pipeline. A killed pipeline resumes when it is run again.", no_args_is_help=True
)
spark.add_typer(run, name="run")

_GAPS = "leave out truncated and damaged records."


def _summarized(
    pipeline: str, summary: Any, facts: dict[str, Any], columns: str = "", rows: Any = ()
) -> Printed:
    """Return the output of a pipeline: JSON, or facts and a table."""
    data = {"pipeline": pipeline, **msgspec.to_builtins(summary)}
    losses = getattr(summary, "lost", [])
    data |= {"lost": [msgspec.structs.asdict(loss) for loss in losses]} if losses else {}
    pairs = [*facts.items(), ("took", f"{summary.seconds:,.1f} s")]
    table = Table(columns.split(), list(rows))
    if not losses:
        return Printed(data, FactSheet(pairs), table)
    nouns = sum(not len(loss) for loss in losses)
    left_out = [f"{plural(sum(map(len, losses)), 'record')} that cannot be read"]
    left_out += [f"{nouns:,} logs or queues as a whole"] if nouns else []
    pairs.append(("left out", ", ".join(left_out)))
    reasons = [PrintedLine(loss.reason, "red", note=True) for loss in losses[:LOSSES_SHOWN]]
    return Printed(data, FactSheet(pairs), table, *reasons, code=EXIT_LOSSES)


class ArchiveOptions(Struct):
    """The options of `archive`."""

    logs: Annotated[tuple[str, ...], "LOG: a log; may be repeated."] = ()
    pattern: Annotated[str, "REGEX: instead: all logs whose complete names match."] = ""
    cursor: Annotated[str, "NAME: the cursor of the archive."] = "archive"
    keep: Annotated[
        float | None, "DURATION: truncate archived records that are older, such as 7d."
    ] = None
    truncate: Annotated[bool, "let logs delete archived records by their retention."] = True
    compression: Annotated[str, "NAME: the codec: zstd, snappy, gzip, lz4, uncompressed."] = "zstd"
    round_records: Annotated[int, "records per round.", Meta(ge=1)] = 1_000_000
    allow_gaps: Annotated[bool, _GAPS] = False
    table: Annotated[str, "KIND: also as a table: iceberg or delta."] = ""
    target_file_size: Annotated[
        int, "SIZE: merge small files of a log and partition up to this size: 128MiB."
    ] = 0
    columns: Annotated[bool, "a column for each field of values that have a schema."] = False
    partition_by: Annotated[
        str, "COLUMN: partition by this column, or by its day; default: the date of the append."
    ] = ""
    expire: Annotated[
        float, "DURATION: how long merged files stay, for older versions of a table."
    ] = 7 * DAY_S


@command(run, "spark run archive /backup/orders --log orders --keep 7d")
def archive(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The archive: a directory, or s3://bucket/prefix.")
    ],
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(ArchiveOptions)],
) -> Printed:
    """Archive logs as Parquet files by log and date. Each record is written once; also as a table.

    Truncates the archived logs.
    """
    summary = job.run("archive", place, path, **options)
    facts = {
        "archive": summary.path,
        "records": summary.records,
        "files": f"{summary.files:,} ({size(summary.bytes)})",
        "truncated": summary.truncated,
    }
    if summary.table is not None:
        added = plural(summary.table.files, "file")
        facts["table"] = f"{summary.table.kind}, version {summary.table.version}, {added} added"
    if summary.merged or summary.expired:
        facts["merged"] = f"{plural(summary.merged, 'file')}, {summary.expired:,} expired"
    rows = [
        (log.log, log.start, log.stop, log.records, log.files, log.truncated)
        for log in summary.logs
    ]
    return _summarized("archive", summary, facts, "log from to records files truncated", rows)


class TableOptions(Struct):
    """The options of `table`."""

    kind: Annotated[str, "KIND: delta or iceberg."] = "delta"
    once: Annotated[bool, "end when the table has what the logs hold now."] = False
    interval: Annotated[float, "DURATION: the time between commits."] = 10.0
    upsert: Annotated[bool, "keep the latest record of each key; a tombstone deletes its key."] = (
        False
    )
    partition_by: Annotated[
        str, "COLUMN: partition by this column, or by its day; default: the date of the append."
    ] = ""
    batch_records: Annotated[int, "most records per commit.", Meta(ge=1)] = 1_000_000
    target_file_size: Annotated[
        int, "SIZE: compact small files up to this size: 64MiB; 0 compacts nothing."
    ] = 128 * 1024 * 1024
    expire: Annotated[float, "DURATION: how long older versions of the table can be read."] = DAY_S
    cursor: Annotated[str, "NAME: a cursor that follows the table, for consumed retention."] = ""
    allow_gaps: Annotated[bool, _GAPS] = False


@command(run, "spark run table /lake/orders --log orders --kind iceberg --upsert")
def table(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The table: a directory, or s3://bucket/prefix.")
    ],
    logs: Annotated[
        list[str], typer.Option("--log", metavar="LOG", help="A log; may be repeated.")
    ],
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(TableOptions)],
) -> Printed:
    """Keep a Delta or Iceberg table up to date with logs, until Ctrl-C.

    Logs with a schema get a column for each field.
    """
    summary = job.run("table", place, path, logs=logs, **options)
    facts = {
        "table": f"{summary.path}, {summary.kind}, version {summary.version}",
        "records": f"{summary.records:,} in {plural(summary.commits, 'commit')}",
        "behind": summary.behind,
        "files": summary.files,
    }
    if summary.compacted or summary.expired:
        facts["compacted"] = f"{plural(summary.compacted, 'file')}, {summary.expired:,} expired"
    if summary.keyless:
        facts["without a key"] = f"{summary.keyless:,} left out"
    return _summarized("table", summary, facts)


class ReplayOptions(Struct):
    """The options of `replay`."""

    format: Annotated[
        str, "NAME: the format: parquet, json, csv, orc, table; default: by the file's suffix."
    ] = ""
    columns: Annotated[
        tuple[str, ...], "NAME=SQL: what key, value, timestamp or headers are; may be repeated."
    ] = ()
    headers: Annotated[tuple[str, ...], "NAME=SQL: a header; may be repeated."] = ()
    options: Annotated[
        tuple[str, ...], "NAME=VALUE: an option of Spark's reader; may be repeated."
    ] = ()
    where: Annotated[str, "SQL: only rows for which this is true."] = ""
    order_by: Annotated[str, "SQL: append in this order."] = ""
    rate: Annotated[float | None, "most records per second."] = None
    step_records: Annotated[int, "records per commit.", Meta(ge=1)] = 100_000


@command(run, "spark run replay old.parquet --to orders --checkpoint replay/")
def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Files, or a table's name.")],
    to: Annotated[str, typer.Option("--to", metavar="LOG", help="The log.")],
    checkpoint: Annotated[
        Path, typer.Option(metavar="PATH", help="A directory for this replay only.")
    ],
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(ReplayOptions)],
) -> Printed:
    """Append rows of files or Spark tables to a log, each row once. Reads Parquet, JSON and CSV.

    Without a column `value`, the value is the complete row as JSON. Run again with the same
    --checkpoint, a killed replay resumes, and a finished replay appends nothing.
    """
    for name in ("columns", "headers", "options"):
        options[name] = _pairs(options.get(name, ()))
    summary = job.run("replay", place, source, to, checkpoint=checkpoint, **options)
    records = f"{summary.records:,} of {summary.total:,}"
    facts = {"log": summary.log, "records": records, "resumed": summary.resumed}
    return _summarized("replay", summary, facts)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=…, not {text!r}")
        pairs[name] = value
    return pairs


class CompactOptions(Struct):
    """The options of `compact`."""

    to: Annotated[str, "LOG: a new log."] = ""
    parquet: Annotated[str, "PATH: instead: a new directory."] = ""
    archive: Annotated[str, "PATH: an archive of the log's beginning."] = ""
    keyless: Annotated[bool, "keep records without a key."] = True
    empty_deletes: Annotated[bool, "let an empty value delete its key."] = False
    tombstones: Annotated[float, "DURATION: how long records with a null value are kept."] = DAY_S
    allow_gaps: Annotated[bool, _GAPS] = False


@command(run, "spark run compact prices --to prices-now", "spark run compact prices --parquet now/")
def compact(
    log: LogName,
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(CompactOptions)],
) -> Printed:
    """Copy the last record of each key to a log or to Parquet."""
    summary = job.run("compact", place, log, **options)
    records = f"{summary.kept:,} kept of {summary.read:,}"
    facts = {"to": summary.to, "records": records, "as of offset": summary.end}
    return _summarized("compact", summary, facts)


class ReportOptions(Struct):
    """The options of `report`."""

    queues: Annotated[tuple[str, ...], "QUEUE: a queue; default: all queues. May be repeated."] = ()
    by: Annotated[tuple[str, ...], "HEADER: group the figures by a header. May be repeated."] = ()
    allow_gaps: Annotated[bool, "leave out damaged queues and headers."] = False


@command(run, "spark run report report/ --queue billing --by region")
def report(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The report's directory.")],
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(ReportOptions)],
) -> Printed:
    """Report on the messages of queues, as Parquet and as a page.

    Shows throughput, waiting time, working time, attempts and reasons.
    """
    summary = job.run("report", place, path, **options)
    from millstream.spark.pipelines.charts import duration

    figures = summary.figures
    facts = {"page": summary.page, "messages": figures.messages, "attempts": figures.attempts}
    rows = [
        (
            each.queue,
            each.messages,
            each.done,
            each.failed,
            duration(each.wait.p50),
            duration(each.work.p50),
        )
        for each in figures.queues
    ]
    return _summarized("report", summary, facts, "queue messages done failed waited worked", rows)


class RedriveOptions(Struct):
    """The options of `redrive`."""

    where: Annotated[str, "SQL: a condition over reason, text, headers, attempt, …"] = "true"
    limit: Annotated[int | None, "most messages, the oldest first.", Meta(ge=1)] = None
    rate: Annotated[float | None, "messages per second that become available."] = None
    dry_run: Annotated[bool, "only count the messages."] = False


@command(run, "spark run redrive billing --where \"reason like '%timeout%'\" --dry-run")
def redrive(
    queue: QueueName,
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(RedriveOptions)],
) -> Printed:
    """Make failed messages available again, chosen by SQL."""
    summary = job.run("redrive", place, queue, **options)
    facts = {
        "queue": summary.queue,
        "failed before": summary.failed,
        "chosen": summary.chosen,
        "redriven": "none: a dry run" if summary.dry_run else summary.redriven,
    }
    return _summarized("redrive", summary, facts)


class RouteOptions(Struct):
    """The options of `route`."""

    queues: Annotated[
        tuple[str, ...], "QUEUE: a queue; default: all queues that Spark routes. May be repeated."
    ] = ()
    enrich: Annotated[str, "SQL: a query over `records` that returns other headers."] = ""
    values: Annotated[bool, "include the values in `records`."] = False
    backfill: Annotated[str, "PATH: an archive, whose records new queues get first."] = ""
    round_records: Annotated[int, "records per round.", Meta(ge=1)] = 250_000


@command(run, "spark run route", "spark run route --queue billing --backfill /backup/orders")
def route(
    place: StorePlace,
    job: SparkJob,
    options: Annotated[Fields, Declared(RouteOptions)],
    allow_gaps: Annotated[
        bool,
        typer.Option("--allow-gaps", "--allow-loss", help="Skip truncated and damaged records."),
    ] = False,
) -> Printed:
    """Assign records to queues that Spark routes.

    Asks all filters of queues with router=spark in one pass over the records.
    """
    summary = job.run("route", place, allow_gaps=allow_gaps, **options)
    facts = {
        "records": f"{summary.records:,} in {plural(summary.rounds, 'round')}",
        "assigned": summary.assigned,
        "backfilled": summary.backfilled,
    }
    rows = [(each.queue, each.assigned, each.backfilled, each.behind) for each in summary.queues]
    return _summarized("route", summary, facts, "queue assigned backfilled behind", rows)
