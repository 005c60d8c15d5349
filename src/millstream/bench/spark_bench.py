"""The session, the store and the turns that the workloads of Spark share.

Both sides of a workload take turns in one warm session, and the medians of their times are compared.
Payloads are random and all different: Parquet would keep one of repeated ones, and prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import millstream
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, payloads, seconds
from millstream.header import HeaderMapping
from millstream.spark.local.session import local_session
from millstream.spark.pipelines.target import PipelineRun, quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MASTER = "local[2]"
MEMORY = "2g"
FILL_BATCH = 10_000
WARM_TURNS, WARM_S = 12, 15.0
"""So many turns at first, or for so long, do not count: Java compiles what is run often."""
TURNS_MIN, TURNS_MAX = 3, 9
ROUTED_QUEUES = 50
MANY_RECORDS = 500
"""Records of each of many small logs."""
NOTE_BYTES = 25
"""Random bytes of a record with a schema, which stand in hex: the record has 100 bytes then."""
SINGLES_MAX = 100_000

_FIELDS = {"id": "integer", "item": "string", "total": "integer", "note": "string"}
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": kind} for name, kind in _FIELDS.items()},
    "required": [*_FIELDS],
}

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
        random = Random(count)
        for number in range(count):
            log = self.client.log(f"{prefix}{number}")
            if log.end_offset():
                continue
            log.set_schema(SCHEMA)
            for start in range(0, each, FILL_BATCH):
                log.append_many(typed_values(random, range(start, min(start + FILL_BATCH, each))))
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


def typed_values(random: Random, ids: range) -> list[bytes]:
    """Return records of 100 bytes that fit the schema, each with its id."""
    return [
        b'{"id":%d,"item":"i%d","total":%d,"note":"%s"}'
        % (id, random.randrange(1_000), random.randrange(10**6), note.hex().encode())
        for id, note in zip(ids, payloads(len(ids), NOTE_BYTES), strict=True)
    ]


def discard(frame: DataFrame) -> None:
    """Compute every row and column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def measured(
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
