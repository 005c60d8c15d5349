"""Workloads of the Spark source, beside Spark's own Parquet files in the same session.

Both sides of a workload take turns in one warm session, and the medians of their times are compared.
Payloads are random and all different: Parquet would keep one of repeated ones, and prove nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import millstream
from millstream.bench import first_row
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, payloads, seconds
from millstream.bench.suite import Suite
from millstream.errors import CannotOpen
from millstream.header import HeaderMapping
from millstream.spark.local.session import local_session
from millstream.spark.pipelines.target import PipelineRun, quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MASTER = "local[2]"
MEMORY = "2g"
FILL_BATCH = 10_000
PER_TRIGGER = 100_000
WARM_TURNS, WARM_S = 12, 15.0
"""So many turns at first, or for so long, do not count: Java compiles what is run often."""
TURNS_MIN, TURNS_MAX = 3, 9
ROUTED_QUEUES = 50
SCALED_PARTITIONS = 4
MANY_RECORDS = 500
"""Records of each of many small logs."""
MANY_LOGS = 1_000
NOTE_BYTES = 25
"""Random bytes of a record with a schema, which stand in hex: the record has 100 bytes then."""
SINGLES_MAX = 100_000
TABLE_FILES = 100

Work = Callable[[], object]


class SparkBench:
    """One session, one store, and the logs and files that workloads share."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.seconds = seconds_each
        self.records = records
        self.directory = directory
        self.store = str(directory / "bench.db")
        self.client = millstream.open(self.store)
        self.spark = local_session(
            name="millstream bench", master=MASTER, memory=MEMORY, directory=directory
        )
        self.job = PipelineRun(self.spark, self.store, quiet)
        self._made = 0

    def close(self) -> None:
        """Stop Spark."""
        self.client.close()
        self.spark.stop()

    def name(self, kind: str) -> str:
        """A name that was not used yet."""
        self._made += 1
        return f"{kind}-{self._made}"

    def filled(self, size: int = PAYLOAD_BYTES, *, routed: bool = False) -> str:
        """The log that holds as many records as are measured; with headers, if it is routed."""
        log = self.client.log("routed" if routed else f"filled-{size}")
        while (have := log.end_offset()) < self.records:
            numbers = range(have, min(have + FILL_BATCH, self.records))
            headers: list[HeaderMapping | None] = [
                {"region": f"r{number % ROUTED_QUEUES}", "amount": number // 7 % 1_000}
                for number in numbers
            ]
            log.append_many(payloads(len(numbers), size), headers=headers if routed else None)
        self.client.fold()
        return log.name

    def singles(self) -> str:
        """A folded log of records that were appended one by one."""
        log = self.client.log("singles")
        for value in payloads(min(self.records, SINGLES_MAX) - log.end_offset()):
            log.append(value)
        self.client.fold()
        return log.name

    def typed(self, count: int) -> Callable[[], DataFrame]:
        """Return a function that reads as many records as are measured, in logs with a schema."""
        prefix, each = f"typed-{count}-", -(-self.records // count)
        fields = {"id": "integer", "item": "string", "total": "integer", "note": "string"}
        properties = {name: {"type": kind} for name, kind in fields.items()}
        schema = {"type": "object", "properties": properties, "required": [*fields]}
        random = Random(count)
        for number in range(count):
            log = self.client.log(f"{prefix}{number}")
            if log.end_offset():
                continue
            log.set_schema(schema)
            for start in range(0, each, FILL_BATCH):
                ids = range(start, min(start + FILL_BATCH, each))
                log.append_many(
                    b'{"id":%d,"item":"i%d","total":%d,"note":"%s"}'
                    % (id, random.randrange(1_000), random.randrange(10**6), note.hex().encode())
                    for id, note in zip(ids, payloads(len(ids), NOTE_BYTES), strict=True)
                )
        self.client.fold()
        reader = self.spark.read.format("millstream").option("columns", "true")
        reader = reader.option("subscribePattern", f"{prefix}.*")
        return lambda: reader.load(self.store)

    def many(self) -> str:
        """As many records in many small logs: the pattern of their names."""
        for number in range(max(1, self.records // MANY_RECORDS)):
            log = self.client.log(f"many-{number:06}")
            if not log.end_offset():
                log.append_many(payloads(MANY_RECORDS))
        self.client.fold()
        return "many-.*"


def spark_read(bench: SparkBench) -> ReportRow:
    """Batch reads, beside the same rows in uncompressed Parquet files."""
    return _read(bench, PAYLOAD_BYTES)


def spark_read_1k(bench: SparkBench) -> ReportRow:
    """The same with larger records."""
    return _read(bench, 1_000)


def _read(bench: SparkBench, size: int) -> ReportRow:
    log = bench.filled(size)
    files = str(bench.directory / f"read-{size}.parquet")
    bench.job.read([log]).write.option("compression", "uncompressed").parquet(files)
    row = _measured(
        bench,
        lambda: _discard(bench.job.read([log])),
        lambda: _discard(bench.spark.read.parquet(files)),
    )
    row.payload_bytes = size
    return row.require_ratio(0.6)


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
    measured = []
    for count in (2, min(MANY_LOGS, max(3, bench.records // MANY_RECORDS))):
        read = bench.typed(count)
        files = str(bench.directory / bench.name("typed.parquet"))
        read().write.option("compression", "uncompressed").parquet(files)
        parquet = bench.spark.read.parquet
        ours, beside = partial(_ask, query, read), partial(_ask, query, partial(parquet, files))
        measured.append(_measured(bench, ours, beside))
        measured[-1].details["logs"] = count
    row, many = measured
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

    return _measured(bench, run, batch=PER_TRIGGER).require_rate(150_000)


def spark_write(bench: SparkBench) -> ReportRow:
    """Batch writes of rows that lie in Spark's memory, beside writing them to Parquet."""
    rows = bench.job.read([bench.filled()]).select("value").cache()
    _discard(rows)

    def ours() -> None:
        bench.job.append(rows, log=bench.name("written"))

    def peer() -> None:
        rows.write.parquet(str(bench.directory / bench.name("written.parquet")))

    row = _measured(bench, ours, peer).require_ratio(0.5)
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

    row = _measured(bench, run, prepare=prepare, batch=ROUTED_QUEUES)
    row.details["assigned"] = assigned[-1]
    if not assigned[-1] or len(set(assigned)) > 1:
        row.void = "runs over the same records did not assign the same"
    return row.require_rate(50_000)


def spark_scale(bench: SparkBench) -> ReportRow:
    """One log read in four partitions, beside in one."""
    log = bench.filled()
    row = _measured(
        bench,
        lambda: _discard(bench.job.read([log], minPartitions=SCALED_PARTITIONS)),
        lambda: _discard(bench.job.read([log], minPartitions=1)),
    )
    return row.require_ratio(1.15)


def spark_many_logs(bench: SparkBench) -> ReportRow:
    """Many small logs, beside one log with as many records: counted, and archived."""
    from millstream.spark.pipelines.archive import archive

    log, pattern = bench.filled(), bench.many()
    row = _measured(
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
    row = _measured(
        bench,
        lambda: _discard(bench.job.read([singles])),
        lambda: _discard(bench.job.read([log], endingOffsets=ends)),
        records=ends[log],
    )
    return row.require_ratio(0.8)


def spark_table(bench: SparkBench) -> ReportRow:
    """Registering the files of an archive as a table: Delta, and beside it Iceberg."""
    from millstream.spark.archive.archive import Archive
    from millstream.spark.archive.lake import KINDS, check_table, register
    from millstream.spark.pipelines.archive import archive

    try:
        for kind in KINDS:
            check_table(kind)
    except CannotOpen as error:
        return ReportRow(void=error.message, details={"turns": 0})
    bench.many()
    names = [f"many-{number:06}" for number in range(TABLE_FILES)]
    logs = [name for name in names if bench.client.log(name).end_offset()]
    took_s: dict[str, list[float]] = {"delta": [], "iceberg": []}
    for _ in range(1 if bench.seconds < 1 else TURNS_MIN + 1):
        folder = bench.directory / bench.name("kept")
        archive(bench.spark, bench.store, folder, logs=logs)
        for kind, times in took_s.items():
            began = seconds()
            register(Archive(folder), kind)
            times.append(seconds() - began)
    # The first turn imports the libraries.
    delta_s, iceberg_s = (median(times[1:] or times) for times in took_s.values())
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        batch=len(logs),
        per_second=round(len(logs) / delta_s),
        p50_ms=round(delta_s * 1000, 1),
        details={
            "files": len(logs),
            "iceberg_s": round(iceberg_s, 2),
            "delta_s": round(delta_s, 2),
            "turns": len(took_s["delta"]),
        },
    )
    if len(took_s["delta"]) < TURNS_MIN:
        row.void = f"{len(took_s['delta'])} turns are too few; give it a second or more"
    row.require("iceberg ≤ 5 s", iceberg_s <= 5)
    return row.require("delta ≤ 2 s", delta_s <= 2)


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


def _discard(frame: DataFrame) -> None:
    """Compute every row and column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _measured(
    bench: SparkBench,
    *sides: Work,
    prepare: Work | None = None,
    records: int | None = None,
    **more: Any,
) -> ReportRow:
    """Ours, in turns with a peer if there is one: records per second, and how medians compare."""
    records = records or bench.records
    turns_min = 1
    if bench.seconds >= 1:
        _repeat(sides, prepare, turns=(1, WARM_TURNS), total_s=WARM_S)
        turns_min = TURNS_MIN
    took_s, *beside_s = _repeat(sides, prepare, turns=(turns_min, TURNS_MAX), total_s=bench.seconds)
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        per_second=round(records / median(took_s)),
        p50_ms=round(median(took_s) * 1000, 1),
        p99_ms=round(max(took_s) * 1000, 1),
        details={"records": records, "turns": len(took_s)},
        **more,
    )
    for peer_s in beside_s:
        row.beside_per_second = round(records / median(peer_s))
        row.ratio = round(median(peer_s) / median(took_s), 3)
    if len(took_s) < TURNS_MIN:
        row.void = f"{len(took_s)} turns are too few; give it a second or more"
    return row


def _repeat(
    sides: tuple[Work, ...], prepare: Work | None, *, turns: tuple[int, int], total_s: float
) -> list[list[float]]:
    """Let sides take turns until the time is over, at least and at most so many; their times."""
    took_s: list[list[float]] = [[] for _ in sides]
    turns_min, turns_max = turns
    began = seconds()
    for turn in range(turns_max):
        order = list(zip(sides, took_s, strict=True))
        for side, times in order if turn % 2 else reversed(order):
            if prepare is not None:
                prepare()
            start = seconds()
            side()
            times.append(seconds() - start)
        if turn + 1 >= turns_min and seconds() - began >= total_s:
            break
    return took_s


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
    spark_table,
    spark_first_row,
)
