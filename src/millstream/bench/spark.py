"""Workloads of the Spark source, beside Spark's own Parquet files in the same session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from millstream.bench import first_row
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, seconds
from millstream.bench.spark_bench import (
    MANY_RECORDS,
    ROUTED_QUEUES,
    SINGLES_MAX,
    TURNS_MIN,
    SparkBench,
    discard,
    measured,
)
from millstream.bench.spark_tables import spark_register, spark_table
from millstream.bench.suite import Suite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PER_TRIGGER = 100_000
SCALED_PARTITIONS = 4
MANY_LOGS = 1_000


def spark_read(bench: SparkBench) -> ReportRow:
    """Batch reads, beside the same rows in uncompressed Parquet files."""
    return _read(bench, PAYLOAD_BYTES, ratio_min=0.75)


def spark_read_1k(bench: SparkBench) -> ReportRow:
    """The same with larger records."""
    return _read(bench, 1_000, ratio_min=0.6)


def _read(bench: SparkBench, size: int, *, ratio_min: float) -> ReportRow:
    log = bench.filled(size)
    files = str(bench.directory / f"read-{size}.parquet")
    bench.job.read([log]).write.option("compression", "uncompressed").parquet(files)
    row = measured(
        bench,
        lambda: discard(bench.job.read([log])),
        lambda: discard(bench.spark.read.parquet(files)),
    )
    row.payload_bytes = size
    return row.require_ratio(ratio_min)


def spark_count(bench: SparkBench) -> ReportRow:
    """Counting the records of two logs, and of many, beside the rows of Parquet files."""
    return _queried(bench, lambda rows: rows.count(), two_min=0.8, many_min=0.8)


def spark_agg(bench: SparkBench) -> ReportRow:
    """Count, sum and maximum of a column of two logs with a schema, and of many."""

    def aggregate(rows: DataFrame) -> object:
        return rows.selectExpr("count(total)", "sum(total)", "max(total)").collect()

    return _queried(bench, aggregate, two_min=0.8, many_min=0.6)


def spark_group(bench: SparkBench) -> ReportRow:
    """Sums by a column with a thousand texts, of two logs with a schema, and of many."""

    def group(rows: DataFrame) -> object:
        return rows.groupBy("item").sum("total").collect()

    return _queried(bench, group, two_min=0.6, many_min=0.6)


def _queried(
    bench: SparkBench, query: Callable[[DataFrame], object], *, two_min: float, many_min: float
) -> ReportRow:
    """Measure a query of columns over two logs and over many, beside uncompressed Parquet."""
    figures = []
    for count in (2, min(MANY_LOGS, max(3, bench.records // MANY_RECORDS))):
        read = bench.typed(count)
        files = str(bench.directory / bench.name("typed.parquet"))
        read().write.option("compression", "uncompressed").parquet(files)
        parquet = bench.spark.read.parquet
        ours, beside = partial(_ask, query, read), partial(_ask, query, partial(parquet, files))
        figures.append(measured(bench, ours, beside))
        figures[-1].details["logs"] = count
    row, many = figures
    row.details |= {"many": {"logs": many.details["logs"], "ratio": many.ratio}}
    row.details["many"]["per_second"] = many.per_second
    row.void = row.void or many.void
    many.require_ratio(many_min)
    return row.require_ratio(two_min).require(
        f"ratio of many logs ≥ {many_min}", many.passed is True
    )


def _ask(query: Callable[[DataFrame], object], read: Callable[[], DataFrame]) -> object:
    return query(read())


def spark_stream(bench: SparkBench) -> ReportRow:
    """A stream over all there is, in batches, until nothing is left."""
    log = bench.filled()

    def run() -> None:
        reader = bench.spark.readStream.format("millstream").option("path", bench.store)
        reader = reader.option("subscribe", log).option("startingOffsets", "earliest")
        query = (
            reader.option("maxOffsetsPerTrigger", PER_TRIGGER)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(bench.directory / bench.name("checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return measured(bench, run, batch=PER_TRIGGER).require_rate(300_000)


def spark_write(bench: SparkBench) -> ReportRow:
    """Batch writes of rows that lie in Spark's memory, beside writing them to Parquet."""
    rows = bench.job.read([bench.filled()]).select("value").cache()
    discard(rows)

    def ours() -> None:
        bench.job.append(rows, log=bench.name("written"))

    def peer() -> None:
        rows.write.parquet(str(bench.directory / bench.name("written.parquet")))

    row = measured(bench, ours, peer).require_ratio(0.7)
    rows.unpersist()
    return row


def spark_route(bench: SparkBench) -> ReportRow:
    """The pipeline `route` with many queues, each with a filter of its own."""
    from millstream.spark.pipelines.route import route

    log = bench.filled(routed=True)
    names: list[str] = []
    assigned: list[int] = []

    def prepare() -> None:
        names[:] = [bench.name("queue") for _ in range(ROUTED_QUEUES)]
        for number, name in enumerate(names):
            condition = f"region = 'r{number}' AND amount >= 100"
            bench.client.queue(
                name, sources=[log], start="earliest", filter=condition, router="spark"
            )

    def run() -> None:
        assigned.append(route(bench.spark, bench.store, queues=names).assigned)

    row = measured(bench, run, prepare=prepare, batch=ROUTED_QUEUES)
    row.details["assigned"] = assigned[-1]
    if not assigned[-1] or len(set(assigned)) > 1:
        row.void = "runs over the same records did not assign the same"
    return row.require_rate(100_000)


def spark_scale(bench: SparkBench) -> ReportRow:
    """One log read in four partitions, beside in one."""
    log = bench.filled()
    row = measured(
        bench,
        lambda: discard(bench.job.read([log], minPartitions=SCALED_PARTITIONS)),
        lambda: discard(bench.job.read([log], minPartitions=1)),
    )
    return row.require_ratio(1.3)


def spark_many_logs(bench: SparkBench) -> ReportRow:
    """Many small logs, beside one log with as many records: counted, and archived."""
    from millstream.spark.pipelines.archive import archive

    log, pattern = bench.filled(), bench.many()
    row = measured(
        bench,
        lambda: bench.job.load(subscribePattern=pattern).count(),
        lambda: bench.job.read([log]).count(),
    )

    def archived(**chosen: Any) -> float:
        began = seconds()
        archive(bench.spark, bench.store, bench.directory / bench.name("kept"), **chosen)
        return seconds() - began

    one_s, many_s = archived(logs=[log]), archived(pattern=pattern)
    row.details |= {"archive_s": round(many_s, 1), "archive_times": round(many_s / one_s, 2)}
    return row.require_ratio(0.5).require("archived in < 3 times", many_s < 3 * one_s)


def spark_read_singles(bench: SparkBench) -> ReportRow:
    """A folded log of single appends, beside as many records of one that was appended in blocks."""
    log, singles = bench.filled(), bench.singles()
    ends = {log: min(bench.records, SINGLES_MAX)}
    row = measured(
        bench,
        lambda: discard(bench.job.read([singles])),
        lambda: discard(bench.job.read([log], endingOffsets=ends)),
        records=ends[log],
    )
    return row.require_ratio(0.8)


def spark_first_row(bench: SparkBench) -> ReportRow:
    """Read the first row of a log in new sessions, each in its own process, and take the median.

    The row states no goal: loading Spark's own classes takes nearly all of the time.
    """
    log = bench.filled()
    turns = 1 if bench.seconds < 1 else TURNS_MIN
    command = [sys.executable, "-m", first_row.__name__, bench.store, log]
    took_s: list[float] = []
    for _ in range(turns):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took_s.append(float(done.stdout.split()[-1]))
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        per_second=round(1 / median(took_s), 3),
        p50_ms=round(median(took_s) * 1000, 1),
        p99_ms=round(max(took_s) * 1000, 1),
        details={"turns": turns},
    )
    if turns < TURNS_MIN:
        row.void = f"{turns} turns are too few; give it a second or more"
    return row


SUITE = Suite(
    SparkBench,
    spark_read,
    spark_read_1k,
    spark_count,
    spark_agg,
    spark_group,
    spark_stream,
    spark_write,
    spark_route,
    spark_scale,
    spark_many_logs,
    spark_read_singles,
    spark_register,
    spark_table,
    spark_first_row,
)
