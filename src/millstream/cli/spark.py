"""`millstream spark run`: the pipelines on Spark, each a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath
from millstream.cli.options import takes
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.spark.pipelines.target import Tell
    from millstream.spark.place import Place

spark = typer.Typer(help="Pipelines on Spark.", no_args_is_help=True)
run = typer.Typer(
    help="Run a pipeline; killed and run again, it goes on where it stopped.", no_args_is_help=True
)
spark.add_typer(run, name="run")


@dataclass(frozen=True)
class Where:
    """Which store, and which Spark."""

    server: Annotated[
        str, typer.Option(metavar="URL", help="The address of a server, instead of --store.")
    ] = ""
    token_file: Annotated[
        str, typer.Option(metavar="PATH", help="A file with the token for the server.")
    ] = ""
    ca: Annotated[
        str, typer.Option(metavar="PATH", help="Certificates to trust, for the server.")
    ] = ""
    master: Annotated[str, typer.Option(help="Threads of Spark on this machine.")] = "local[*]"
    memory: Annotated[str, typer.Option(help="The most that Spark's Java may use.")] = "1g"

    def place(self, store: Path) -> Place:
        """The store that is meant."""
        from millstream.spark.pipelines.target import place_of
        from millstream.spark.place import make_place

        if not self.server:
            return place_of(store)
        return make_place("", server=self.server, token_file=self.token_file, ca=self.ca)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Spark, started for this command; what it raises becomes an error of ours."""
        from pyspark.errors import PySparkException

        from millstream.spark.session import local_session

        found = local_session(name="millstream", master=self.master, memory=self.memory)
        try:
            yield found
        except PySparkException as error:
            raise MillstreamError(reason_of(str(error))) from error
        finally:
            found.stop()


def reason_of(told: str) -> str:
    """What went wrong, from all that Spark says about it: our own words, if there are any."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("millstream.errors.")]
    return (own or lines or ["Spark failed without a word"])[0]


Progress = Annotated[
    bool, typer.Option("--progress/--no-progress", help="Say how far it is, on standard error.")
]


@contextmanager
def _progress(wanted: bool) -> Iterator[Tell]:
    """A bar on a terminal; else a line whenever a stage is further."""
    from millstream.spark.pipelines.target import quiet

    if not wanted:
        yield quiet
        return
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from millstream.cli.display import console

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda stage, done, total: bar.update(
            task, description=stage, completed=done, total=total or None
        )


def _line(stage: str, done: int, total: int) -> None:
    from millstream.cli import display

    display.note(f"{stage}: {done:,} of {total:,}" if total else f"{stage} …")


def _report(
    summary: Any,
    *,
    json: bool,
    title: str,
    facts: Sequence[tuple[str, str]],
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> None:
    """The summary at the end: JSON, or facts and a table."""
    from millstream.cli import display

    if json:
        import msgspec

        display.say_json({"pipeline": title, **msgspec.to_builtins(summary)})
        return
    display.say_facts([*facts, ("took", f"{summary.seconds:,.1f} s")])
    if rows:
        display.say("")
        display.say_table(columns, rows, numbers=columns[1:])


@run.command()
@takes(Where)
def archive(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The archive's directory.")],
    where: Where,
    store: StorePath = Path(DEFAULT_STORE),
    log: Annotated[
        list[str] | None, typer.Option("--log", metavar="LOG", help="A log; may be repeated.")
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="Instead: all logs whose names match wholly.")
    ] = "",
    cursor: Annotated[str, typer.Option(help="The cursor that follows.")] = "archive",
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Truncate what is archived and older, such as 7d."),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate/--no-truncate", help="Let logs forget by their retention.")
    ] = True,
    compression: Annotated[str, typer.Option(help="zstd, snappy, gzip, lz4, uncompressed.")] = (
        "zstd"
    ),
    round_records: Annotated[
        int, typer.Option(metavar="N", min=1, help="Records per round.")
    ] = 1_000_000,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Go on where records were truncated too early.")
    ] = False,
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """Logs to Parquet files by log and date, each record once; then truncates behind them."""
    _check_installed()
    from millstream.cli import display
    from millstream.cli.arguments import parse_duration
    from millstream.spark.pipelines.archive import archive as pipeline

    keep_s = None if keep is None else parse_duration(keep)
    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(
            session, place, path, logs=log or [], pattern=pattern, cursor=cursor, keep=keep_s,
            truncate=truncate, compression=compression, round_records=round_records,
            fail_on_data_loss=not allow_gaps, progress=tell,
        )  # fmt: skip
    _report(
        summary,
        json=json,
        title="archive",
        facts=[
            ("archive", display.safe(summary.path)),
            ("records", f"{summary.records:,}"),
            ("files", f"{summary.files:,} ({display.size(summary.bytes)})"),
            ("truncated", f"{summary.truncated:,}"),
        ],
        columns=("log", "from", "to", "records", "files", "truncated"),
        rows=[
            (
                display.safe(one.log),
                str(one.start),
                str(one.stop),
                f"{one.records:,}",
                f"{one.files:,}",
                f"{one.truncated:,}",
            )
            for one in summary.logs
        ],
    )


@run.command()
@takes(Where)
def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Files, or a table's name.")],
    to: Annotated[str, typer.Option("--to", metavar="LOG", help="The log.")],
    where: Where,
    checkpoint: Annotated[
        Path, typer.Option(metavar="PATH", help="A directory of this one replay.")
    ],
    store: StorePath = Path(DEFAULT_STORE),
    format: Annotated[str, typer.Option(help="parquet, json, csv, orc, table.")] = "parquet",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SQL", help="What key, value, timestamp or headers are."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SQL", help="A header; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of Spark's reader.")
    ] = None,
    condition: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Only rows for which this is true.")
    ] = "",
    order_by: Annotated[str, typer.Option(metavar="SQL", help="Append in this order.")] = "",
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="At most so many records per second.")
    ] = None,
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """Parquet, JSON, CSV or a Spark table to a log, each row once.

    Without a column `value` the value is the whole row as JSON. Run again with the same --checkpoint,
    a replay that was killed goes on, and a finished one appends nothing.
    """
    _check_installed()
    from millstream.cli import display
    from millstream.spark.pipelines.replay import replay as pipeline

    columns, headers, options = (_pairs(one) for one in (column, header, option))
    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(
            session, place, source, to, checkpoint=checkpoint, format=format, columns=columns,
            headers=headers, options=options, where=condition, order_by=order_by, rate=rate,
            progress=tell,
        )  # fmt: skip
    _report(
        summary,
        json=json,
        title="replay",
        facts=[
            ("log", display.safe(summary.log)),
            ("records", f"{summary.records:,} of {summary.total:,}"),
            ("resumed", "yes" if summary.resumed else "no"),
        ],
    )


def _check_installed() -> None:
    """Say what to install before anything of Spark is imported."""
    from millstream.spark.session import check_installed

    check_installed()


def _pairs(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=…, not {text!r}")
        found[name] = value
    return found


@run.command()
@takes(Where)
def compact(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    where: Where,
    store: StorePath = Path(DEFAULT_STORE),
    to: Annotated[str, typer.Option("--to", metavar="LOG", help="A new log.")] = "",
    parquet: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Instead: a new directory.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="PATH", help="An archive of the log's beginning.")
    ] = None,
    keyless: Annotated[
        bool, typer.Option("--keyless/--no-keyless", help="Keep records without a key.")
    ] = True,
    empty_deletes: Annotated[
        bool, typer.Option("--empty-deletes", help="An empty value deletes its key.")
    ] = False,
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """The last record of each key to a new log, or to Parquet."""
    _check_installed()
    from millstream.cli import display
    from millstream.spark.pipelines.compact import compact as pipeline

    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(
            session, place, log, to_log=to, to_parquet=parquet or "", archive=archive or "",
            keyless=keyless, empty_deletes=empty_deletes, progress=tell,
        )  # fmt: skip
    _report(
        summary,
        json=json,
        title="compact",
        facts=[
            ("to", display.safe(summary.to)),
            ("records", f"{summary.kept:,} kept of {summary.read:,}"),
            ("as of offset", f"{summary.end:,}"),
        ],
    )


@run.command()
@takes(Where)
def report(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The report's directory.")],
    where: Where,
    store: StorePath = Path(DEFAULT_STORE),
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="A queue; default: all.")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="HEADER", help="Tell apart by a header.")
    ] = None,
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """How messages fared: throughput, waiting, working, attempts, reasons; Parquet and a page."""
    _check_installed()
    from millstream.cli import display
    from millstream.spark.pipelines.charts import duration
    from millstream.spark.pipelines.report import report as pipeline

    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(session, place, path, queues=queue or [], by=by or [], progress=tell)
    _report(
        summary,
        json=json,
        title="report",
        facts=[
            ("page", display.safe(summary.page)),
            ("messages", f"{summary.figures.messages:,}"),
            ("attempts", f"{summary.figures.attempts:,}"),
        ],
        columns=("queue", "messages", "done", "failed", "waited", "worked"),
        rows=[
            (
                display.safe(one.queue),
                f"{one.messages:,}",
                f"{one.done:,}",
                f"{one.failed:,}",
                duration(one.wait.p50),
                duration(one.work.p50),
            )
            for one in summary.figures.queues
        ],
    )


@run.command()
@takes(Where)
def redrive(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    where: Where,
    store: StorePath = Path(DEFAULT_STORE),
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
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """Failed messages, chosen by SQL, back to available."""
    _check_installed()
    from millstream.cli import display
    from millstream.spark.pipelines.redrive import redrive as pipeline

    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(
            session, place, queue, where=condition, limit=limit, rate=rate, dry_run=dry_run,
            progress=tell,
        )  # fmt: skip
    _report(
        summary,
        json=json,
        title="redrive",
        facts=[
            ("queue", display.safe(summary.queue)),
            ("failed before", f"{summary.failed:,}"),
            ("chosen", f"{summary.chosen:,}"),
            ("redriven", "none: a dry run" if summary.dry_run else f"{summary.redriven:,}"),
        ],
    )


@run.command()
@takes(Where)
def route(
    where: Where,
    store: StorePath = Path(DEFAULT_STORE),
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
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where records were truncated too early.")
    ] = False,
    progress: Progress = True,
    json: AsJson = False,
) -> None:
    """Assign records to queues with router=spark: all filters in one pass of Spark SQL."""
    _check_installed()
    from millstream.cli import display
    from millstream.spark.pipelines.route import route as pipeline

    place = where.place(store)
    with where.session() as session, _progress(progress) as tell:
        summary = pipeline(
            session, place, queues=queue or [], enrich=enrich or None, values=values,
            backfill=backfill, round_records=round_records, fail_on_data_loss=not allow_loss,
            progress=tell,
        )  # fmt: skip
    _report(
        summary,
        json=json,
        title="route",
        facts=[
            ("records", f"{summary.records:,} in {display.plural(summary.rounds, 'round')}"),
            ("assigned", f"{summary.assigned:,}"),
            ("backfilled", f"{summary.backfilled:,}"),
        ],
        columns=("queue", "assigned", "backfilled", "behind"),
        rows=[
            (display.safe(one.queue), f"{one.assigned:,}", f"{one.backfilled:,}", f"{one.behind:,}")
            for one in summary.queues
        ],
    )
