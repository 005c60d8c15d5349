"""`millstream spark run`: the pipelines on Spark, each a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.arguments import duration, parse_size
from millstream.cli.command import command
from millstream.cli.display import (
    FactSheet,
    Printed,
    PrintedLine,
    Table,
    plural,
    progress,
    size,
)
from millstream.cli.names import LogName, QueueName
from millstream.cli.place import StorePlace
from millstream.cli.spark_job import Where

if TYPE_CHECKING:
    pass

EXIT_LOSSES = 3
"""Done, but for records that cannot be read: they were left out, and named."""

LOSSES_SHOWN = 20

spark = typer.Typer(help="Pipelines on Spark.", no_args_is_help=True)
run = typer.Typer(
    help="Run a pipeline; killed and run again, it goes on where it stopped.", no_args_is_help=True
)
spark.add_typer(run, name="run")


@command(spark, "spark warm")
def warm() -> Printed:
    """Halve the time that Spark takes to start on this machine.

    Keeps the classes of this Spark and this Java in the user's cache folder, about 180 MB. Takes
    about a minute, and has to be done again after an upgrade of either.
    """
    from millstream.spark.local.session import check_installed

    check_installed()  # before anything of Spark is imported
    from millstream.spark.local.class_archive import write_archive

    with progress("starting Spark"):
        path = write_archive()
    stored = path.stat().st_size
    return Printed(
        {"path": str(path), "bytes": stored},
        f"Spark starts with the classes in {path} from now on, {size(stored)}",
    )


def _given(**options: Any) -> dict[str, Any]:
    """The options that were typed; what was not is left to the pipeline."""
    return {name: value for name, value in options.items() if value is not None}


def _summarized(
    pipeline: str, summary: Any, facts: dict[str, Any], columns: str = "", rows: Any = ()
) -> Printed:
    """The summary at the end: JSON, or facts and a table."""
    data = {"pipeline": pipeline, **msgspec.to_builtins(summary)}
    lost = getattr(summary, "lost", [])
    data |= {"lost": [msgspec.structs.asdict(one) for one in lost]} if lost else {}
    pairs = [*facts.items(), ("took", f"{summary.seconds:,.1f} s")]
    table = Table(columns.split(), list(rows))
    if not lost:
        return Printed(data, FactSheet(pairs), table)
    wholes = sum(not len(one) for one in lost)
    left_out = [f"{plural(sum(map(len, lost)), 'record')} that cannot be read"]
    left_out += [f"{wholes:,} logs or queues as a whole"] if wholes else []
    pairs.append(("left out", ", ".join(left_out)))
    named = [PrintedLine(one.reason, "red", note=True) for one in lost[:LOSSES_SHOWN]]
    return Printed(data, FactSheet(pairs), table, *named, code=EXIT_LOSSES)


@command(run, "spark run archive /backup/orders --log orders --keep 7d")
def archive(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The archive: a directory, or s3://bucket/prefix.")
    ],
    place: StorePlace,
    where: Where,
    log: Annotated[
        list[str] | None, typer.Option("--log", metavar="LOG", help="A log; may be repeated.")
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="Instead: all logs whose names match wholly.")
    ] = "",
    cursor: Annotated[
        str, typer.Option(metavar="NAME", help="The cursor that follows.")
    ] = "archive",
    keep: Annotated[
        float | None, duration("Truncate what is archived and older, such as 7d.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate/--no-truncate", help="Let logs delete by their retention.")
    ] = True,
    compression: Annotated[
        str, typer.Option(metavar="NAME", help="zstd, snappy, gzip, lz4, uncompressed.")
    ] = "zstd",
    round_records: Annotated[
        int, typer.Option(metavar="N", min=1, help="Records per round.")
    ] = 1_000_000,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Leave out what was truncated or is damaged.")
    ] = False,
    table: Annotated[
        str, typer.Option(metavar="KIND", help="Also as a table: iceberg or delta.")
    ] = "",
    target_file_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Merge small files of a log and date up to this size, such as 128MiB.",
        ),
    ] = None,
    expire: Annotated[
        float | None,
        duration("How long merged files stay, for older versions of a table.", default="7d"),
    ] = None,
) -> Printed:
    """Logs to Parquet files by log and date, each record once; also as a table.

    Truncates the logs behind them.
    """
    summary = where.run(
        "archive", place, path, logs=log or [], pattern=pattern, cursor=cursor, keep=keep,
        truncate=truncate, compression=compression, round_records=round_records,
        allow_gaps=allow_gaps, table=table,
        **_given(expire=expire, target_file_size=target_file_size),
    )  # fmt: skip
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
    rows = [(o.log, o.start, o.stop, o.records, o.files, o.truncated) for o in summary.logs]
    return _summarized("archive", summary, facts, "log from to records files truncated", rows)


@command(run, "spark run replay old.parquet --to orders --checkpoint replay/")
def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Files, or a table's name.")],
    to: Annotated[str, typer.Option("--to", metavar="LOG", help="The log.")],
    checkpoint: Annotated[
        Path, typer.Option(metavar="PATH", help="A directory of this one replay.")
    ],
    place: StorePlace,
    where: Where,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="parquet, json, csv, orc, table; else by the file's ending."
        ),
    ] = "",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SQL", help="What key, value, timestamp or headers are; may be repeated."
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SQL", help="A header; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of Spark's reader; may be repeated."),
    ] = None,
    condition: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Only rows for which this is true.")
    ] = "",
    order_by: Annotated[str, typer.Option(metavar="SQL", help="Append in this order.")] = "",
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="At most so many records per second.")
    ] = None,
    step_records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Records that are appended together.")
    ] = None,
) -> Printed:
    """Parquet, JSON, CSV or a Spark table to a log, each row once.

    Without a column `value` the value is the whole row as JSON. Run again with the same
    --checkpoint, a replay that was killed goes on, and a finished one appends nothing.
    """
    columns, headers, options = (_pairs(one) for one in (column, header, option))
    summary = where.run(
        "replay", place, source, to, checkpoint=checkpoint, format=format, columns=columns,
        headers=headers, options=options, where=condition, order_by=order_by, rate=rate,
        **_given(step_records=step_records),
    )  # fmt: skip
    records = f"{summary.records:,} of {summary.total:,}"
    facts = {"log": summary.log, "records": records, "resumed": summary.resumed}
    return _summarized("replay", summary, facts)


def _pairs(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=…, not {text!r}")
        found[name] = value
    return found


@command(run, "spark run compact prices --to prices-now", "spark run compact prices --parquet now/")
def compact(
    log: LogName,
    place: StorePlace,
    where: Where,
    to: Annotated[str, typer.Option("--to", metavar="LOG", help="A new log.")] = "",
    parquet: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Instead: a new directory.")
    ] = None,
    archive: Annotated[
        str, typer.Option(metavar="PATH", help="An archive of the log's beginning.")
    ] = "",
    keyless: Annotated[
        bool, typer.Option("--keyless/--no-keyless", help="Keep records without a key.")
    ] = True,
    empty_deletes: Annotated[
        bool, typer.Option("--empty-deletes", help="An empty value deletes its key.")
    ] = False,
    tombstones: Annotated[
        float | None, duration("How long records are kept whose value is null.", default="1d")
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Leave out what was truncated or is damaged.")
    ] = False,
) -> Printed:
    """The last record of each key to a new log, or to Parquet."""
    summary = where.run(
        "compact", place, log, to=to, parquet=parquet or "", archive=archive,
        keyless=keyless, empty_deletes=empty_deletes, allow_gaps=allow_gaps,
        **_given(tombstones=tombstones),
    )  # fmt: skip
    records = f"{summary.kept:,} kept of {summary.read:,}"
    facts = {"to": summary.to, "records": records, "as of offset": summary.end}
    return _summarized("compact", summary, facts)


@command(run, "spark run report report/ --queue billing --by region")
def report(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The report's directory.")],
    place: StorePlace,
    where: Where,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="A queue; default: all.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="HEADER", help="Tell apart by a header.")
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Leave out queues and headers that are damaged.")
    ] = False,
) -> Printed:
    """How messages fared, as Parquet and as a page.

    Throughput, waiting, working, attempts and reasons.
    """
    summary = where.run(
        "report", place, path, queues=queue or [], by=by or [], allow_gaps=allow_gaps
    )
    from millstream.spark.pipelines.charts import duration

    figures = summary.figures
    facts = {"page": summary.page, "messages": figures.messages, "attempts": figures.attempts}
    rows = [
        (o.queue, o.messages, o.done, o.failed, duration(o.wait.p50), duration(o.work.p50))
        for o in figures.queues
    ]
    return _summarized("report", summary, facts, "queue messages done failed waited worked", rows)


@command(run, "spark run redrive billing --where \"reason like '%timeout%'\" --dry-run")
def redrive(
    queue: QueueName,
    place: StorePlace,
    where: Where,
    condition: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Over reason, text, headers, attempt, …")
    ] = "true",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many, the oldest first.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Messages per second that become due.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
) -> Printed:
    """Failed messages, chosen by SQL, back to available."""
    summary = where.run(
        "redrive", place, queue, where=condition, limit=limit, rate=rate, dry_run=dry_run
    )
    facts = {
        "queue": summary.queue,
        "failed before": summary.failed,
        "chosen": summary.chosen,
        "redriven": "none: a dry run" if summary.dry_run else summary.redriven,
    }
    return _summarized("redrive", summary, facts)


@command(run, "spark run route", "spark run route --queue billing --backfill /backup/orders")
def route(
    place: StorePlace,
    where: Where,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="A queue; default: all that Spark routes."),
    ] = None,
    enrich: Annotated[
        str,
        typer.Option(metavar="SQL", help="A query over `records` that gives other headers."),
    ] = "",
    values: Annotated[bool, typer.Option("--values", help="`records` have their values.")] = False,
    backfill: Annotated[
        str, typer.Option(metavar="PATH", help="An archive: new queues get its records first.")
    ] = "",
    round_records: Annotated[
        int, typer.Option(metavar="N", min=1, help="Records per round.")
    ] = 250_000,
    allow_gaps: Annotated[
        bool,
        typer.Option(
            "--allow-gaps", "--allow-loss", help="Pass over what was truncated or is damaged."
        ),
    ] = False,
) -> Printed:
    """Assign records to queues that Spark routes.

    All filters of queues with router=spark in one pass of Spark SQL.
    """
    summary = where.run(
        "route", place, queues=queue or [], enrich=enrich or None, values=values,
        backfill=backfill, round_records=round_records, allow_gaps=allow_gaps,
    )  # fmt: skip
    facts = {
        "records": f"{summary.records:,} in {plural(summary.rounds, 'round')}",
        "assigned": summary.assigned,
        "backfilled": summary.backfilled,
    }
    rows = [(o.queue, o.assigned, o.backfilled, o.behind) for o in summary.queues]
    return _summarized("route", summary, facts, "queue assigned backfilled behind", rows)
