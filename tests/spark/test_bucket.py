"""Promise: Spark's tasks read a bucket directly, and nothing that Spark does fences its writer.

A continuous table may lie in a bucket, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.bench.server_program import served
from millstream.errors import Locked
from millstream.objects.address import parse_address
from millstream.objects.folder import ObjectFolder
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.spark.archive.folders import folder_of
from millstream.spark.archive.lake import delta_table
from millstream.spark.pipelines.table import LOCK, TableSummary, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.embedded, pytest.mark.requires("s3")]

PLACE = f"s3://{BUCKET}/shop"


@pytest.fixture
def objects(spark: SparkSession) -> Iterator[None]:
    """A server of objects that this process and Spark's tasks reach."""
    from pyspark_millstream import DefaultSource

    known = spark.sparkContext.environment
    with object_server() as server, variables(server) as wanted:
        known.update(wanted)
        spark.dataSource.register(DefaultSource)
        yield
    for name in wanted:
        del known[name]
    spark.dataSource.register(DefaultSource)


def read(spark: SparkSession, **options: str) -> DataFrame:
    reader = spark.read.format("millstream").option("path", PLACE).option("subscribe", "orders")
    return reader.options(**options).load()


def write(spark: SparkSession, *, fails: bool = False, **options: str) -> None:
    value = "raise_error('not a number')" if fails else "cast(id as string)"
    rows = spark.range(3_000).selectExpr(f"if(id < 2999, cast(id as string), {value}) as value")
    rows.write.format("millstream").mode("append").options(log="written", **options).save()


def test_tasks_read_a_bucket_while_its_server_writes(spark: SparkSession, objects: None) -> None:
    with (
        running(PLACE, Settings(port=0, stop_s=1.0)) as server,
        millstream.open(server.url) as ms,
    ):
        ms.log("orders").append_many([b"%d" % n for n in range(5_000)])
        ms.fold()
        ms.log("orders").append(b"5000")
        rows = read(spark, minPartitions="4")
        assert rows.rdd.getNumPartitions() == 4
        found = sorted(int(bytes(row.value)) for row in rows.select("value").collect())
        assert found == list(range(5_001))

        with pytest.raises(Exception, match="no server writes"):
            write(spark, path=PLACE)  # this server holds no lease: `millstream serve` does
        write(spark, server=server.url)
        written = sorted(int(record.value) for record in ms.log("written").read())
        assert written == list(range(3_000))
        assert ms.log("orders").append(b"5001") == 5_001  # it was not fenced


def test_a_write_to_the_bucket_is_adopted_by_its_server(spark: SparkSession, objects: None) -> None:
    with served(PLACE) as server, millstream.open(server.url()) as ms:
        write(spark, path=PLACE)
        assert stored(ms) == list(range(3_000))
        assert ms.log("orders").append(b"0") == 0  # it was not fenced
        write(spark, path=PLACE, txnAppId="nightly", txnVersion="1")
        write(spark, path=PLACE, txnAppId="nightly", txnVersion="1")
        assert len(stored(ms)) == 6_000
        assert left_over() == []

        with pytest.raises(Exception, match="not a number"):
            write(spark, path=PLACE, fails=True)
        assert len(stored(ms)) == 6_000
        assert left_over() == []


@pytest.mark.requires("lake")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_in_a_bucket_follows_a_log(
    spark: SparkSession, objects: None, tmp_path: Path, kind: str
) -> None:
    place, path = f"s3://{BUCKET}/lake-{kind}", tmp_path / "store.db"
    fields = {"id": {"type": "integer"}}

    def run(**options: Any) -> TableSummary:
        return table(spark, path, place, logs=["orders"], kind=kind, once=True, **options)

    with millstream.open(path) as ms:
        log = ms.log("orders", schema={"type": "object", "properties": fields})
        log.append_many([b'{"id": %d}' % n for n in range(50)], keys=[f"k{n}" for n in range(50)])
        first = run(batch_records=10)
        assert (first.commits, first.records, first.behind) == (5, 50, 0)
        assert (first.compacted, first.files) == (5, 1)
        fields["paid"] = {"type": "boolean"}
        log = ms.log("orders", schema={"type": "object", "properties": fields})
        log.append(b'{"id": 7, "paid": true}', key="k7")
        log.append(None, key="k8")
        with folder_of(place).hold(LOCK), pytest.raises(Locked, match="another run writes"):
            run()
        assert run(upsert=True).behind == 0
        assert run(upsert=True).commits == 0
    found = {row["key"]: (row["id"], row["paid"]) for row in table_rows(place, kind)}
    expected = {b"k%d" % n: (n, None) for n in range(50) if n != 8}
    assert found == expected | {b"k7": (7, True)}
    assert folder_of(place).names("_staging") == []


def table_rows(place: str, kind: str) -> list[dict[str, Any]]:
    folder = folder_of(place)
    if kind == "delta":
        rows = delta_table(place).to_pyarrow_table()
    else:
        from millstream.spark.archive.iceberg import catalog_of, name_of

        rows = catalog_of(folder, "").load_table(name_of(folder)).scan().to_arrow()
    return rows.to_pylist()


def stored(ms: millstream.Millstream) -> list[int]:
    return sorted(int(record.value) for record in ms.log("written").read())


def left_over() -> list[str]:
    """The objects of jobs that are still there."""
    folder = ObjectFolder(parse_address(PLACE))
    return [one.name for one in folder.list() if one.name.startswith(("staging/", "adopt/"))]
