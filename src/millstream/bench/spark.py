"""Workloads of the Spark source, beside Spark's own Parquet files in the same session.

Both sides of a workload take turns in one warm session, and the medians of their times are compared.
Payloads are random and all different: Parquet would keep one of repeated ones, and prove nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import millstream
from millstream.bench.measure import Row, seconds
from millstream.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MASTER = "local[2]"
MEMORY = "2g"
RECORDS = 1_000_000
FILL_BATCH = 10_000
PER_TRIGGER = 100_000
WARM_TURNS, WARM_S = 12, 15.0
"""So many turns at first, or for so long, do not count: Java compiles what is run often."""
TURNS_MIN, TURNS_MAX = 3, 9
ROUTED_QUEUES = 50
SCALED_PARTITIONS = 4


class Bench:
    """One session, one store, and the logs and files that workloads share."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.seconds = seconds_each
        self.turns_min = TURNS_MIN if seconds_each >= 1 else 1
        self.records = records
        self.directory = directory
        self.store = str(directory / "bench.db")
        self.client = millstream.open(self.store)
        self.spark = local_session(
            name="millstream bench", master=MASTER, memory=MEMORY, directory=directory
        )
        self._made = 0

    def close(self) -> None:
        """Stop Spark."""
        self.client.close()
        self.spark.stop()

    def name(self, kind: str) -> str:
        """A name that was not used yet."""
        self._made += 1
        return f"{kind}-{self._made}"

    def filled(self, payload_bytes: int) -> str:
        """The log that holds as many records as are measured, each of that size."""
        log = self.client.log(f"filled-{payload_bytes}")
        while (have := log.end_offset()) < self.records:
            count = min(FILL_BATCH, self.records - have)
            noise = os.urandom(payload_bytes * count)
            log.append_many(
                [noise[i : i + payload_bytes] for i in range(0, len(noise), payload_bytes)]
            )
        self.client.fold()
        return log.name

    def reading(self, log: str, **options: object) -> DataFrame:
        """A batch read of a log."""
        reader = self.spark.read.format("millstream").option("path", self.store)
        reader = reader.option("subscribe", log)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()


def spark_read(bench: Bench) -> Row:
    """Batch reads, beside the same rows in uncompressed Parquet files."""
    return _read(bench, "spark_read", payload_bytes=100)


def spark_read_1k(bench: Bench) -> Row:
    """The same with larger records."""
    return _read(bench, "spark_read_1k", payload_bytes=1_000)


def _read(bench: Bench, workload: str, *, payload_bytes: int) -> Row:
    log = bench.filled(payload_bytes)
    files = str(bench.directory / f"read-{payload_bytes}.parquet")
    bench.reading(log).write.option("compression", "uncompressed").parquet(files)
    return _beside(
        Row(workload=workload, payload_bytes=payload_bytes),
        bench,
        lambda: _discard(bench.reading(log)),
        lambda: _discard(bench.spark.read.parquet(files)),
        ratio_min=0.6,
    )


def spark_stream(bench: Bench) -> Row:
    """A stream over all there is, in batches, until nothing is left."""
    log = bench.filled(100)

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

    (took_s,) = _turns(bench, [run])
    row = Row(workload="spark_stream", payload_bytes=100, batch=PER_TRIGGER)
    return _at_least(_timed(row, bench, took_s), 150_000)


def spark_write(bench: Bench) -> Row:
    """Batch writes of rows that lie in Spark's memory, beside writing them to Parquet."""
    rows = bench.reading(bench.filled(100)).select("value").cache()
    _discard(rows)

    def ours() -> None:
        writer = rows.write.format("millstream").mode("append").option("path", bench.store)
        writer.option("log", bench.name("written")).save()

    def peer() -> None:
        rows.write.parquet(str(bench.directory / bench.name("written.parquet")))

    row = Row(workload="spark_write", payload_bytes=100)
    _beside(row, bench, ours, peer, ratio_min=0.5)
    rows.unpersist()
    return row


def spark_route(bench: Bench) -> Row:
    """The pipeline `route` with many queues, each with a filter of its own."""
    from millstream.spark.pipelines.route import route

    log = _routed(bench)
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

    (took_s,) = _turns(bench, [run], prepare=prepare)
    row = Row(workload="spark_route", payload_bytes=100, batch=ROUTED_QUEUES)
    _at_least(_timed(row, bench, took_s), 50_000)
    row.details["assigned"] = assigned[-1]
    if not assigned[-1] or len(set(assigned)) > 1:
        row.void = "runs over the same records did not assign the same"
    return row


def _routed(bench: Bench) -> str:
    """A log whose records have the headers that filters ask for."""
    log = bench.client.log("routed")
    while (have := log.end_offset()) < bench.records:
        count = min(FILL_BATCH, bench.records - have)
        noise = os.urandom(100 * count)
        log.append_many(
            [noise[i : i + 100] for i in range(0, len(noise), 100)],
            headers=[
                {"region": f"r{number % ROUTED_QUEUES}", "amount": number // 7 % 1_000}
                for number in range(have, have + count)
            ],
        )
    bench.client.fold()
    return log.name


def spark_scale(bench: Bench) -> Row:
    """One log read in four partitions, beside in one."""
    log = bench.filled(100)
    row = Row(workload="spark_scale", payload_bytes=100)
    return _beside(
        row,
        bench,
        lambda: _discard(bench.reading(log, minPartitions=SCALED_PARTITIONS)),
        lambda: _discard(bench.reading(log, minPartitions=1)),
        ratio_min=1.15,
    )


def _discard(frame: DataFrame) -> None:
    """Compute every row and column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _beside(
    row: Row, bench: Bench, ours: Callable[[], None], peer: Callable[[], None], *, ratio_min: float
) -> Row:
    """Ours and a peer in turns: how many records per second, and how the medians compare."""
    ours_s, peer_s = _turns(bench, [ours, peer])
    ratio = round(median(peer_s) / median(ours_s), 3)
    row.reference_per_second = round(bench.records / median(peer_s))
    row.ratio = ratio
    row.required, row.passed = f"ratio ≥ {ratio_min:g}", ratio >= ratio_min
    return _timed(row, bench, ours_s)


def _turns(
    bench: Bench, sides: list[Callable[[], None]], *, prepare: Callable[[], None] | None = None
) -> list[list[float]]:
    """The times that each side took in turns, once Java has compiled what it runs."""
    if bench.seconds >= 1:
        _repeat(sides, prepare, turns=(1, WARM_TURNS), total_s=WARM_S)
    return _repeat(sides, prepare, turns=(bench.turns_min, TURNS_MAX), total_s=bench.seconds)


def _repeat(
    sides: list[Callable[[], None]],
    prepare: Callable[[], None] | None,
    *,
    turns: tuple[int, int],
    total_s: float,
) -> list[list[float]]:
    """Let sides take turns until the time is over; at least and at most so many."""
    took_s: list[list[float]] = [[] for _ in sides]
    least, most = turns
    began = seconds()
    for turn in range(most):
        order = list(zip(sides, took_s, strict=True))
        for side, times in order if turn % 2 else reversed(order):
            if prepare is not None:
                prepare()
            start = seconds()
            side()
            times.append(seconds() - start)
        if turn + 1 >= least and seconds() - began >= total_s:
            break
    return took_s


def _timed(row: Row, bench: Bench, took_s: list[float]) -> Row:
    row.per_second = round(bench.records / median(took_s))
    row.p50_ms = round(median(took_s) * 1000, 1)
    row.p99_ms = round(max(took_s) * 1000, 1)
    row.details = {"records": bench.records, "turns": len(took_s)}
    if len(took_s) < TURNS_MIN:
        row.void = f"{len(took_s)} turns are too few; give it a second or more"
    return row


def _at_least(row: Row, per_second: int) -> Row:
    row.required, row.passed = f"≥ {per_second:,}/s", row.per_second >= per_second
    return row


WORKLOADS: dict[str, Callable[[Bench], Row]] = {
    "spark_read": spark_read,
    "spark_read_1k": spark_read_1k,
    "spark_stream": spark_stream,
    "spark_write": spark_write,
    "spark_route": spark_route,
    "spark_scale": spark_scale,
}


def run(
    names: list[str],
    *,
    directory: Path | None,
    seconds_each: float,
    started: Callable[[str], None],
    records: float = RECORDS,
) -> Iterator[Row]:
    """Run workloads one after the other in one session; `started` is told the name of each."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-", dir=directory) as found:
        bench = Bench(Path(found), seconds_each=seconds_each, records=int(records))
        try:
            for name in names:
                started(name)
                yield WORKLOADS[name](bench)
        finally:
            bench.close()
