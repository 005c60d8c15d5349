"""The pipeline `report`: how the messages of queues fared → Parquet tables, and one HTML page.

Attempts are read from the queues once and kept as a table; everything else is computed from that. A
report is made anew by each run, and its page is put in place last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import InvalidInput, NotFound
from millstream.queue.commands import DescribeQueue, ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.spark.archive import archive_path
from millstream.spark.pipelines.figures import (
    Figures,
    Minute,
    QueueFigures,
    Reason,
    Slice,
    Spread,
)
from millstream.spark.pipelines.page import page_of
from millstream.spark.pipelines.target import (
    Stopwatch,
    Target,
    Tell,
    check_names,
    configured,
    options_of,
    place_of,
    quiet,
    read,
)
from millstream.spark.place import Place, reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

PAGE = "report.html"
TABLES = ("attempts", "messages", "minutes", "spreads", "reasons")
QUEUES_PER_PAGE = 1_000
STEPS_MAX = 120
"""Points of a chart over time; a longer time has longer steps."""
REASONS_MAX = 12
SLICES_MAX = 15
"""Values of each header: the most frequent ones."""
MINUTE_MS = 60_000

_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}


class ReportSummary(Struct, frozen=True, kw_only=True):
    """What a run made."""

    path: str
    page: str
    seconds: float
    figures: Figures


def report(
    spark: SparkSession,
    store: Target,
    path: str | os.PathLike[str],
    *,
    queues: Sequence[str] = (),
    by: Sequence[str] = (),
    progress: Tell = quiet,
) -> ReportSummary:
    """Report on queues, or on all there are: to Parquet tables and a page in a directory.

    `by` names headers: messages are also told apart by their values, as far as the logs still have
    them. The directory is made, or its earlier report replaced; other files in it are left alone.
    """
    watch, place, into = Stopwatch(), place_of(store), archive_path(path)
    headers = check_names(by, "header")
    infos = _infos(place, check_names(queues, "queue"))
    if into.exists() and not into.is_dir():
        raise InvalidInput(f"{into} is a file; a report is a directory")
    into.mkdir(parents=True, exist_ok=True)
    steps = len(TABLES) + 2
    with configured(spark, _SETTINGS):
        progress("attempts", 0, steps)
        attempts = _attempts(spark, place, into, infos, headers)
        progress("messages", 1, steps)
        messages = _messages(spark, attempts, into)
        step_ms, ends = _step_ms(attempts)
        made = []
        for number, (name, table) in enumerate(
            (
                ("minutes", minutes_of(attempts, messages)),
                ("spreads", spreads_of(attempts, messages, headers)),
                ("reasons", reasons_of(attempts)),
            ),
            2,
        ):
            progress(name, number, steps)
            made.append(_kept(spark, table, into, name))
        spreads, reasons = made[1].collect(), made[2].collect()
        progress("page", steps - 2, steps)
        coarse = minutes_of(attempts, messages, step_ms).collect()
        tries = messages.groupBy("queue", "attempts").count().collect()
        figures = Figures(
            store=place.shown,
            made_ms=SystemClock().wall_ms(),
            first_ms=ends[0],
            last_ms=ends[1],
            step_ms=step_ms,
            queues=[_figures(info, coarse, spreads, reasons, tries, headers) for info in infos],
        )
    page = into / PAGE
    draft = page.with_name(f".{PAGE}.tmp")
    draft.write_text(page_of(figures), encoding="utf-8")
    draft.replace(page)
    progress("page", steps, steps)
    return ReportSummary(path=str(into), page=str(page), seconds=watch.seconds, figures=figures)


def _infos(place: Place, names: Sequence[str]) -> list[QueueInfo]:
    with reading(place) as session:
        if names:
            found = []
            for name in names:
                info = session.execute(DescribeQueue(name))
                if info is None:
                    raise NotFound(f"there is no queue {name!r} to report on", name=name)
                found.append(info)
            return found
        found, after = [], ""
        while page := session.execute(ListQueues(after, QUEUES_PER_PAGE)):
            found += page
            after = page[-1].name
    if not found:
        raise NotFound("there is no queue in this store to report on")
    return found


def _kept(spark: SparkSession, table: DataFrame, into: Path, name: str) -> DataFrame:
    """A table as Parquet files in its place, and read from there."""
    draft, place = into / f".{name}.partial", into / name
    shutil.rmtree(draft, ignore_errors=True)
    table.write.option("compression", "zstd").parquet(str(draft))
    shutil.rmtree(place, ignore_errors=True)
    draft.rename(place)
    return spark.read.parquet(str(place))


def _attempts(
    spark: SparkSession,
    place: Place,
    into: Path,
    infos: Sequence[QueueInfo],
    headers: Sequence[str],
) -> DataFrame:
    """One row per attempt, with the headers that are asked for as columns `header_N`."""
    from pyspark.sql import functions as f

    def of(queue: str) -> DataFrame:
        reader = spark.read.format("millstream").options(**options_of(place))
        return reader.options(queue=queue, state="attempts").load()

    found = reduce(lambda a, b: a.unionByName(b), (of(info.name) for info in infos))
    found = _kept(spark, found, into, "attempts")
    if not headers:
        return found
    logs = [row[0] for row in found.select("topic").distinct().collect()]
    if not logs:
        return found.select(
            "*", *(f.lit(None).cast("string").alias(_column(h, headers)) for h in headers)
        )
    records = read(
        spark, place, logs, typedHeaders=True, metadataOnly=True, failOnDataLoss=False
    ).select(
        "topic", "offset", *(_text_of(header).alias(_column(header, headers)) for header in headers)
    )
    return _kept(spark, found.join(records, ["topic", "offset"], "left"), into, "attempts")


def _column(header: str, headers: Sequence[str]) -> str:
    return f"header_{list(headers).index(header)}"


def _text_of(header: str) -> Column:
    """A header's value as text, whatever its type."""
    from pyspark.sql import functions as f

    value = f.try_element_at("headers", f.lit(header))
    return f.coalesce(*(value[letter].cast("string") for letter in "sidb"))


def _messages(spark: SparkSession, attempts: DataFrame, into: Path) -> DataFrame:
    """One row per message: when it came, how long it waited, how many attempts it took."""
    from pyspark.sql import functions as f

    kept = [name for name in attempts.columns if name.startswith("header_")]
    found = attempts.groupBy(
        "queue", "claimId", "topic", "offset", "appendedAt", "state", *kept
    ).agg(
        f.min("claimedAt").alias("claimedAt"),
        f.max("endedAt").alias("endedAt"),
        f.max("attempt").alias("attempts"),
    )
    waited = _seconds("appendedAt", "claimedAt").alias("waited")
    return _kept(spark, found.select("*", waited), into, "messages")


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
    length = max(1, row[1] - row[0])
    step = MINUTE_MS
    for factor in (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440):
        step = factor * MINUTE_MS
        if length / step <= STEPS_MAX:
            return step, (row[0], row[1])
    days = -(-length // (STEPS_MAX * 1440 * MINUTE_MS))
    return days * 1440 * MINUTE_MS, (row[0], row[1])


def minutes_of(attempts: DataFrame, messages: DataFrame, step_ms: int = MINUTE_MS) -> DataFrame:
    """What happened per queue and minute, or longer step: counts, and how long it took."""
    from pyspark.sql import functions as f

    def at(column: str) -> Column:
        step = f.lit(step_ms)
        return f.timestamp_millis(f.floor(f.unix_millis(column) / step) * step)

    def event(
        rows: DataFrame, column: str, *, waited: Any = None, worked: Any = None, **is_: Any
    ) -> DataFrame:
        names = ("arrived", "claimed", "done", "failed", "again")
        null = f.lit(None).cast("double")
        return rows.where(f.col(column).isNotNull()).select(
            "queue",
            at(column).alias("minute"),
            *(
                f.coalesce(is_.get(name, f.lit(False)), f.lit(False)).cast("int").alias(name)
                for name in names
            ),
            (null if waited is None else waited).alias("waited"),
            (null if worked is None else worked).alias("worked"),
        )

    ended = {name: f.col("outcome") == name for name in ("done", "failed", "again")}
    yes = f.lit(True)
    events = (
        event(messages, "appendedAt", arrived=yes)
        .unionByName(event(messages, "claimedAt", waited=f.col("waited")))
        .unionByName(event(attempts, "claimedAt", claimed=yes))
        .unionByName(event(attempts, "endedAt", worked=_worked(), **ended))
    )
    return (
        events.groupBy("queue", "minute")
        .agg(
            *(
                f.sum(name).alias(name)
                for name in ("arrived", "claimed", "done", "failed", "again")
            ),
            *(
                f.percentile(column, f.lit(share)).alias(f"{column}_p{round(share * 100)}")
                for column in ("waited", "worked")
                for share in (0.5, 0.99)
            ),
        )
        .orderBy("queue", "minute")
    )


def spreads_of(attempts: DataFrame, messages: DataFrame, headers: Sequence[str]) -> DataFrame:
    """How long waiting and working took, per queue; and per queue, header and its value."""
    groups: list[tuple[str | None, str | None]] = [(None, None)]
    groups += [(header, _column(header, headers)) for header in headers]
    return reduce(
        lambda a, b: a.unionByName(b),
        (_spread(attempts, messages, header, column) for header, column in groups),
    )


def _spread(
    attempts: DataFrame, messages: DataFrame, header: str | None, column: str | None
) -> DataFrame:
    from pyspark.sql import functions as f

    def keyed(rows: DataFrame) -> DataFrame:
        value = f.lit(None).cast("string") if column is None else f.col(column)
        return rows.withColumn("header", f.lit(header).cast("string")).withColumn("value", value)

    by = ["queue", "header", "value"]
    waits = (
        keyed(messages)
        .groupBy(*by)
        .agg(
            f.count("*").alias("messages"),
            f.sum("attempts").alias("attempts"),
            *(f.count_if(f.col("state") == s).alias(s) for s in ("done", "failed", "in_flight")),
            *_quantiles(f.col("waited"), "wait"),
        )
    )
    works = keyed(attempts).groupBy(*by).agg(*_quantiles(_worked(), "work"))
    same = reduce(
        lambda a, b: a & b, (f.col(f"a.{name}").eqNullSafe(f.col(f"b.{name}")) for name in by)
    )
    joined = waits.alias("a").join(works.alias("b"), same, "left")
    return joined.select("a.*", *(f"b.{name}" for name in works.columns if name not in by))


def _quantiles(column: Column, prefix: str) -> Iterable[Column]:
    from pyspark.sql import functions as f

    yield f.count(column).alias(f"{prefix}_count")
    for share in (0.5, 0.9, 0.99):
        yield f.percentile(column, f.lit(share)).alias(f"{prefix}_p{round(share * 100)}")
    yield f.max(column).alias(f"{prefix}_most")


def reasons_of(attempts: DataFrame) -> DataFrame:
    """Why attempts went wrong, per queue; the most frequent reason first."""
    from pyspark.sql import functions as f

    wrong = attempts.where("outcome in ('failed', 'again')")
    return (
        wrong.withColumn(
            "reason", f.when(f.col("reason") == "", "(none given)").otherwise(f.col("reason"))
        )
        .groupBy("queue", "reason")
        .agg(
            f.count("*").alias("attempts"),
            f.count_distinct("claimId").alias("messages"),
            f.count_if(f.col("outcome") == "failed").alias("failed"),
            f.max("endedAt").alias("last"),
        )
        .orderBy("queue", f.desc("attempts"), "reason")
    )


def _figures(
    info: QueueInfo,
    minutes: Sequence[Row],
    spreads: Sequence[Row],
    reasons: Sequence[Row],
    tries: Sequence[Row],
    headers: Sequence[str],
) -> QueueFigures:
    own = [row for row in spreads if row["queue"] == info.name]
    whole = next((row for row in own if row["header"] is None), None)
    slices = []
    for header in headers:
        rows = sorted((r for r in own if r["header"] == header), key=lambda r: -r["messages"])
        slices += [
            Slice(
                header=header,
                value=row["value"],
                messages=row["messages"],
                done=row["done"],
                failed=row["failed"],
                attempts=row["attempts"],
                wait=_spread_of(row, "wait"),
                work=_spread_of(row, "work"),
            )
            for row in rows[:SLICES_MAX]
        ]
    return QueueFigures(
        queue=info.name,
        messages=whole["messages"] if whole else 0,
        attempts=whole["attempts"] if whole else 0,
        done=whole["done"] if whole else 0,
        failed=whole["failed"] if whole else 0,
        in_flight=info.in_flight,
        available=info.available + info.delayed + info.unrouted,
        wait=_spread_of(whole, "wait") if whole else Spread(),
        work=_spread_of(whole, "work") if whole else Spread(),
        tries={
            row["attempts"]: row["count"]
            for row in sorted(tries, key=lambda row: int(row["attempts"]))
            if row["queue"] == info.name
        },
        minutes=[
            Minute(
                at_ms=round(row["minute"].timestamp() * 1000),
                arrived=row["arrived"],
                claimed=row["claimed"],
                done=row["done"],
                failed=row["failed"],
                again=row["again"],
                wait_p50=row["waited_p50"],
                wait_p99=row["waited_p99"],
                work_p50=row["worked_p50"],
                work_p99=row["worked_p99"],
            )
            for row in minutes
            if row["queue"] == info.name
        ],
        reasons=[
            Reason(
                reason=row["reason"],
                attempts=row["attempts"],
                messages=row["messages"],
                failed=row["failed"],
                last_ms=round(row["last"].timestamp() * 1000),
            )
            for row in reasons
            if row["queue"] == info.name
        ][:REASONS_MAX],
        slices=slices,
    )


def _spread_of(row: Row, prefix: str) -> Spread:
    return Spread(
        count=row[f"{prefix}_count"] or 0,
        p50=row[f"{prefix}_p50"],
        p90=row[f"{prefix}_p90"],
        p99=row[f"{prefix}_p99"],
        most=row[f"{prefix}_most"],
    )
