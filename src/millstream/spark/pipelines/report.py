"""The pipeline `report`: writes the history of queues to Parquet tables and an HTML page.

The run reads the attempts of the queues once and keeps them as a table; the report's tables are
computed from this table. Each run makes a new report, and puts its page in place last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import CorruptionError, InvalidInput, NotFound
from millstream.queue.model.message import QueueInfo
from millstream.spark.archive.disk_folder import disk_path
from millstream.spark.pipelines.figures import FigureCounts, Figures, QueueFigures
from millstream.spark.pipelines.page import page_of
from millstream.spark.pipelines.target import (
    PipelineRun,
    Target,
    Tell,
    check_names,
    find_queues,
    quiet,
)
from millstream.spark.pipelines.unreadable import header_losses, readable_queues
from millstream.spark.place import reading
from millstream.spark.source.losses import Loss, TellLoss

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAGE = "report.html"
STEPS = 6
"""Five tables, and the page."""
STEPS_MAX = 120
FAIR_H = (1, 2, 4, 6, 12)
DAY_S = 86_400
"""Points of a chart over time; a longer time has longer steps."""
REASONS_MAX = 12
SLICES_MAX = 15
"""The most values of a header; the most frequent values are shown."""
MINUTE_MS = 60_000

Values = dict[str, Any]
"""A row, by the names of its columns."""


class ReportSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    path: str
    page: str
    seconds: float
    figures: Figures
    lost: list[Loss] = []
    """Queues that were left out, and records whose headers cannot be read."""


def report(
    spark: SparkSession,
    store: Target,
    path: str | os.PathLike[str],
    *,
    queues: Sequence[str] = (),
    by: Sequence[str] = (),
    allow_gaps: bool = False,
    progress: Tell = quiet,
) -> ReportSummary:
    """Report on the named queues, or on all queues: Parquet tables and a page in a directory.

    `by` names headers: the report then groups messages by the values of these headers too, if the
    logs still hold them. The run creates the directory, or replaces an earlier report in it, and
    leaves other files alone. A damaged queue, or damaged headers named by `by`, end the run; with
    `allow_gaps` they are left out, and the summary names them.
    """
    job, into = PipelineRun(spark, store, progress), disk_path(path)
    headers = {name: f"header_{at}" for at, name in enumerate(check_names(by, "header"))}
    lost: list[Loss] = []
    tell = lost.append if allow_gaps else None
    infos = _queues(job, check_names(queues, "queue"), tell)
    if not infos:
        raise _nothing(lost)
    if into.exists() and not into.is_dir():
        raise InvalidInput(f"{into} is a file; a report is a directory")
    into.mkdir(parents=True, exist_ok=True)
    with job.configured({"spark.sql.session.timeZone": "UTC"}):
        progress("attempts", 0, STEPS)
        attempts = _attempts(job, into, infos, headers, tell)
        progress("messages", 1, STEPS)
        messages = job.write_parquet(_messages(attempts), into / "messages")
        step_ms, ends = _step_ms(attempts)
        made = {
            "minutes": minutes_of(attempts, messages),
            "spreads": spreads_of(attempts, messages, headers),
            "reasons": reasons_of(attempts),
        }
        for number, (name, table) in enumerate(made.items(), 2):
            progress(name, number, STEPS)
            made[name] = job.write_parquet(table, into / name)
        progress("page", STEPS - 1, STEPS)
        coarse = minutes_of(attempts, messages, step_ms)
        tries = messages.groupBy("queue", "attempts").count().orderBy("attempts")
        tables = [
            _collected(table_) for table_ in (coarse, made["spreads"], made["reasons"], tries)
        ]
        queue_figures = [_figures(info, tables, headers) for info in infos]
        figures = Figures(
            store=job.place.shown,
            made_ms=SystemClock().wall_ms(),
            first_ms=ends[0],
            last_ms=ends[1],
            step_ms=step_ms,
            queues=queue_figures,
            **{
                name: sum(getattr(queue, name) for queue in queue_figures)
                for name in FigureCounts.__struct_fields__
            },
        )
    page = into / PAGE
    draft = page.with_name(f".{PAGE}.tmp")
    draft.write_text(page_of(figures), encoding="utf-8")
    draft.replace(page)
    progress("page", STEPS, STEPS)
    return ReportSummary(
        path=str(into), page=str(page), seconds=job.seconds, figures=figures, lost=lost
    )


def _queues(job: PipelineRun, names: Sequence[str], tell: TellLoss | None) -> list[QueueInfo]:
    """Return the queues of the report; with `tell`, leave out damaged queues and report them."""
    with reading(job.place) as session:
        infos = find_queues(session, names, tell)
        return infos if tell is None else readable_queues(session, infos, tell)


def _nothing(lost: list[Loss]) -> NotFound | CorruptionError:
    if lost:
        return CorruptionError(lost[0].reason, what="queue", where="")
    return NotFound("there is no queue in this store to report on")


def _attempts(
    job: PipelineRun,
    into: Path,
    infos: Sequence[QueueInfo],
    headers: Mapping[str, str],
    tell: TellLoss | None,
) -> DataFrame:
    """One row per attempt, with the headers that are asked for in columns of their own."""
    from pyspark.sql import functions as f

    each = (job.load(queue=info.name, state="attempts") for info in infos)
    stored = job.write_parquet(reduce(lambda a, b: a.unionByName(b), each), into / "attempts")
    if not headers:
        return stored
    logs = [row[0] for row in stored.select("topic").distinct().collect()]
    if not logs:
        none = f.lit(None).cast("string")
        return stored.select("*", *(none.alias(column) for column in headers.values()))
    for loss in header_losses(job, stored, logs):
        if tell is None:
            reason = f"{loss.reason}; with allow_gaps the report is made without the headers of what is damaged"
            raise CorruptionError(reason, what="log", where=loss.log)
        tell(loss)
    records = job.read(logs, typedHeaders=True, metadataOnly=True, failOnDataLoss=False)
    record_headers = records.select(
        "topic", "offset", *(_text_of(name).alias(column) for name, column in headers.items())
    )
    joined = stored.join(record_headers, ["topic", "offset"], "left")
    return job.write_parquet(joined, into / "attempts")


def _text_of(header: str) -> Column:
    """Return the value of a header as text."""
    from pyspark.sql import functions as f

    value = f.try_element_at("headers", f.lit(header))
    return f.coalesce(*(value[letter].cast("string") for letter in "sidb"))


def _messages(attempts: DataFrame) -> DataFrame:
    """Return a row per message: its arrival, its waiting time, and its number of attempts."""
    from pyspark.sql import functions as f

    header_columns = [name for name in attempts.columns if name.startswith("header_")]
    grouped = attempts.groupBy(
        "queue", "claimId", "topic", "offset", "appendedAt", "state", *header_columns
    ).agg(
        f.min("claimedAt").alias("claimedAt"),
        f.max("endedAt").alias("endedAt"),
        f.max("attempt").alias("attempts"),
    )
    waited = _seconds("appendedAt", "claimedAt").alias("waited")
    return grouped.select("*", waited)


def _seconds(start: str, stop: str) -> Column:
    """The seconds between two columns, never less than none: clocks may differ."""
    from pyspark.sql import functions as f

    return f.greatest(f.lit(0.0), (f.unix_micros(stop) - f.unix_micros(start)).cast("double") / 1e6)


def _worked() -> Column:
    return _seconds("claimedAt", "endedAt")


def _step_ms(attempts: DataFrame) -> tuple[int, tuple[int | None, int | None]]:
    """How long a step of a chart is, and the first and last time that it shows."""
    from pyspark.sql import functions as f

    row = attempts.agg(
        f.unix_millis(f.min("appendedAt")),
        f.unix_millis(f.max(f.greatest("appendedAt", "claimedAt", "endedAt"))),
    ).first()
    assert row is not None
    if row[0] is None:
        return MINUTE_MS, (None, None)
    return step_of(row[1] - row[0]), (row[0], row[1])


def step_of(length_ms: int) -> int:
    """Return a round length of a chart's step that divides a time span into `STEPS_MAX` or less."""
    fair = [
        1,
        2,
        5,
        10,
        15,
        30,
        *(60 * n for n in (1, 2, 5, 10, 15, 30)),
        *(3600 * n for n in FAIR_H),
    ]
    needed_s = max(1, -(-length_ms // (1_000 * STEPS_MAX)))
    days = -(-needed_s // DAY_S)
    return 1_000 * next((step for step in fair if needed_s <= step), days * DAY_S)


def minutes_of(attempts: DataFrame, messages: DataFrame, step_ms: int = MINUTE_MS) -> DataFrame:
    """What happened per queue and minute, or another step: counts, and how long it took."""
    from pyspark.sql import functions as f

    ended = {name: f.col("outcome") == name for name in ("done", "failed", "again")}
    counts: dict[str, Column] = {"arrived": f.lit(True), "claimed": f.lit(True), **ended}
    times = {"wait": f.col("waited"), "work": _worked()}

    def events(rows: DataFrame, column: str, *names: str) -> DataFrame:
        """Return the events of a time column: counts and durations in `names`, else null."""
        step = f.lit(step_ms)
        minute = f.timestamp_millis(f.floor(f.unix_millis(column) / step) * step)
        none = f.lit(None)
        return rows.where(f.col(column).isNotNull()).select(
            "queue",
            minute.alias("minute"),
            *((counts[name] if name in names else none).cast("int").alias(name) for name in counts),
            *(
                (times[name] if name in names else none).cast("double").alias(name)
                for name in times
            ),
        )

    event_tables = (
        events(messages, "appendedAt", "arrived"),
        events(messages, "claimedAt", "wait"),
        events(attempts, "claimedAt", "claimed"),
        events(attempts, "endedAt", "work", *ended),
    )
    return (
        reduce(lambda a, b: a.unionByName(b), event_tables)
        .groupBy("queue", "minute")
        .agg(
            *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in counts),
            *(
                f.percentile(name, f.lit(share)).alias(f"{name}_p{round(share * 100)}")
                for name in times
                for share in (0.5, 0.99)
            ),
        )
        .orderBy("queue", "minute")
    )


def spreads_of(attempts: DataFrame, messages: DataFrame, headers: Mapping[str, str]) -> DataFrame:
    """How long waiting and working took, per queue; and per queue, header and its value."""
    groups: list[tuple[str | None, str | None]] = [(None, None), *headers.items()]
    spreads = (_spread(attempts, messages, header, column) for header, column in groups)
    return reduce(lambda a, b: a.unionByName(b), spreads)


def _spread(
    attempts: DataFrame, messages: DataFrame, header: str | None, column: str | None
) -> DataFrame:
    from pyspark.sql import functions as f

    def keyed(rows: DataFrame) -> DataFrame:
        value = f.lit(None).cast("string") if column is None else f.col(column)
        return rows.withColumn("header", f.lit(header).cast("string")).withColumn("value", value)

    by = ["queue", "header", "value"]
    waits = keyed(messages).groupBy(*by)
    a = waits.agg(
        f.count("*").alias("messages"),
        f.sum("attempts").alias("attempts"),
        *(f.count_if(f.col("state") == s).alias(s) for s in ("done", "failed", "in_flight")),
        _quantiles(f.col("waited")).alias("wait"),
    ).alias("a")
    b = keyed(attempts).groupBy(*by).agg(_quantiles(_worked()).alias("work")).alias("b")
    same_group = [f.col(f"a.{name}").eqNullSafe(f.col(f"b.{name}")) for name in by]
    return a.join(b, same_group, "left").select("a.*", "b.work")


def _quantiles(column: Column) -> Column:
    """How long something took, as a `Spread`."""
    from pyspark.sql import functions as f

    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return f.struct(
        f.count(column).alias("count"),
        *(f.percentile(column, f.lit(share)).alias(name) for name, share in shares.items()),
        f.max(column).alias("most"),
    )


def reasons_of(attempts: DataFrame) -> DataFrame:
    """Why attempts went wrong, per queue; the most frequent reason first, without its traceback."""
    from pyspark.sql import functions as f

    wrong = attempts.where("outcome in ('failed', 'again')")
    first_line = f.substring_index("reason", "\n", 1)
    return (
        wrong.withColumn("reason", f.when(first_line == "", "(none given)").otherwise(first_line))
        .groupBy("queue", "reason")
        .agg(
            f.count("*").alias("attempts"),
            f.count_distinct("claimId").alias("messages"),
            f.count_if(f.col("outcome") == "failed").alias("failed"),
            f.max("endedAt").alias("last"),
        )
        .orderBy("queue", f.desc("attempts"), "reason")
    )


def _collected(table: DataFrame) -> list[Values]:
    """Rows by the names of their columns; times in milliseconds, under the names of figures."""
    from pyspark.sql import functions as f

    for name, figure in (("minute", "at_ms"), ("last", "last_ms")):
        if name in table.columns:
            table = table.withColumn(figure, f.unix_millis(name))
    return [row.asDict(recursive=True) for row in table.collect()]


def _figures(
    info: QueueInfo, tables: Iterable[list[Values]], headers: Iterable[str]
) -> QueueFigures:
    minutes, spreads, reasons, tries = (
        [row for row in table if row["queue"] == info.name] for table in tables
    )
    totals = next((row for row in spreads if row["header"] is None), {})
    slices = []
    for header in headers:
        rows = [row for row in spreads if row["header"] == header]
        slices += sorted(rows, key=lambda row: -row["messages"])[:SLICES_MAX]
    values = {
        **totals,
        "queue": info.name,
        "in_flight": info.in_flight,
        "available": info.available + info.delayed + info.unrouted,
        "tries": {row["attempts"]: row["count"] for row in tries},
        "minutes": minutes,
        "reasons": reasons[:REASONS_MAX],
        "slices": slices,
    }
    return msgspec.convert(values, QueueFigures)
