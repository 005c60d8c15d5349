"""Promise: damage, truncation and a log made anew give one clear error, or a gap that is reported.

Every kind of query meets every kind of loss: columns, a count, an aggregate, a stream and a continuous
table. A strict query ends with an error that names the log and the offsets. A lenient query has all other
records, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream
from millstream.format import block as blocks
from millstream.format import keys
from millstream.spark.pipelines.table import TableSummary, table
from millstream.testing import Probe
from millstream.testing.probe import corrupt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EACH, BLOCKS = 20, 10
RECORDS = EACH * BLOCKS
SEEN = EACH
"""Records that streams and tables took before the loss."""
HIT = range(4 * EACH, 5 * EACH)
CUT = 3 * EACH
ANEW = 2 * EACH
"""Records of the log that was made anew."""

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}

BATCH_ERRORS = {
    "damage": r"log 'orders': .* 80 to 99 are damaged.*failOnDataLoss",
    "truncation": r"log 'orders' begins at 60, so offsets 0 to 59 are lost.*failOnDataLoss",
    "made anew": r"log 'orders' ends at 40, before offset 100.*made anew.*failOnDataLoss",
}
STREAM_ERRORS = {
    **BATCH_ERRORS,
    "truncation": r"log 'orders' begins at 60, so offsets 20 to 59 are lost",
    "made anew": r"is of another log 'orders'",
}
LEFT = {
    "damage": [n for n in range(RECORDS) if n not in HIT],
    "truncation": list(range(CUT, RECORDS)),
    "made anew": [],
}
"""What a lenient batch has. Of the log made anew it begins beyond the end."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        opened.log("orders", schema=SCHEMA)
        fill(opened, 0, SEEN)
        yield opened


def fill(store: Millstream, start: int, stop: int) -> None:
    for first in range(start, stop, EACH):
        numbers = range(first, first + EACH)
        store.log("orders").append_many([b'{"id": %d}' % n for n in numbers])
    store.fold()


def lose(store: Millstream, loss: str) -> None:
    fill(store, SEEN, RECORDS)
    log = store.log("orders")
    if loss == "truncation":
        log.truncate(before=CUT)
    elif loss == "made anew":
        log.delete()
        store.log("orders", schema=SCHEMA)
        fill(store, 0, ANEW)
    else:
        engine, log_id = (
            Probe(store).store.engine,
            int(Probe(store).store.seen(keys.log_name("orders"))),
        )
        start, (_, stop) = keys.entry(log_id, HIT.start), keys.of_log(keys.ENTRY, log_id)
        with engine.read() as snapshot:
            ((_, entry),) = snapshot.scan(start, stop, limit=1)
        first_id = blocks.decode_header(entry, kind=blocks.METADATA).first_id
        corrupt(engine, keys.payload_block(first_id))


def rows(spark: SparkSession, store: Millstream, loss: str, *, strict: bool) -> DataFrame:
    start = 5 * EACH if loss == "made anew" else 0
    reader = spark.read.format("millstream").option("path", store.stats()["path"])
    reader = reader.option("subscribe", "orders").option("columns", "true")
    reader = reader.option("startingOffsets", f'{{"orders": {start}}}')
    return reader.option("failOnDataLoss", str(strict).lower()).load()


@pytest.mark.parametrize("loss", LEFT)
def test_batches(spark: SparkSession, store: Millstream, loss: str) -> None:
    lose(store, loss)
    queries = {
        "columns": lambda some: sorted(row.id for row in some.select("id").collect()),
        "count": lambda some: some.count(),
        "aggregate": lambda some: some.selectExpr("sum(id)").first()[0],
    }
    expected = {
        "columns": LEFT[loss],
        "count": len(LEFT[loss]),
        "aggregate": sum(LEFT[loss]) or None,
    }
    for kind, query in queries.items():
        if (kind, loss) == ("count", "damage"):
            # Metadata does not tell of a damaged value, and a count reads no values.
            assert query(rows(spark, store, loss, strict=True)) == RECORDS
            assert query(rows(spark, store, loss, strict=False)) == RECORDS
            continue
        with pytest.raises(Exception, match=BATCH_ERRORS[loss]):
            query(rows(spark, store, loss, strict=True))
        assert query(rows(spark, store, loss, strict=False)) == expected[kind], kind


@pytest.mark.parametrize("loss", LEFT)
def test_a_stream(spark: SparkSession, store: Millstream, tmp_path: Path, loss: str) -> None:
    def copy(*, strict: bool) -> None:
        reader = spark.readStream.format("millstream").option("path", store.stats()["path"])
        reader = reader.option("subscribe", "orders").option("startingOffsets", "earliest")
        some = reader.option("columns", "true").option("failOnDataLoss", str(strict).lower()).load()
        writer = some.selectExpr("cast(id as string) as value").writeStream.format("millstream")
        writer = writer.option("path", str(tmp_path / "copy.db")).option("log", "copy")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    millstream.open(tmp_path / "copy.db").close()
    copy(strict=True)
    lose(store, loss)
    with pytest.raises(Exception, match=STREAM_ERRORS[loss]):
        copy(strict=True)
    copy(strict=False)
    with millstream.open(tmp_path / "copy.db") as copied:
        found = [int(record.value or b"") for record in copied.log("copy").read()]
    again = range(ANEW) if loss == "made anew" else [n for n in LEFT[loss] if n >= SEEN]
    assert found == [*range(SEEN), *again]


@pytest.mark.requires("lake")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", LEFT)
def test_a_continuous_table(
    spark: SparkSession, store: Millstream, tmp_path: Path, loss: str
) -> None:
    from deltalake import DeltaTable

    def run(**options: Any) -> TableSummary:
        path = str(store.stats()["path"])
        return table(spark, path, tmp_path / "lake", logs=["orders"], once=True, **options)

    assert run().records == SEEN
    lose(store, loss)
    with pytest.raises(Exception, match=STREAM_ERRORS[loss]):
        run()
    if loss == "made anew":
        with pytest.raises(Exception, match=STREAM_ERRORS[loss]):
            run(allow_gaps=True)
        return
    summary = run(allow_gaps=True)
    lost = HIT if loss == "damage" else range(SEEN, CUT)
    assert [(one.log, one.start, one.stop) for one in summary.lost] == [
        ("orders", lost.start, lost.stop)
    ]
    assert (summary.records, summary.behind) == (RECORDS - SEEN - len(lost), 0)
    found = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().column("id").to_pylist()
    assert sorted(found) == [n for n in range(RECORDS) if n not in lost]
