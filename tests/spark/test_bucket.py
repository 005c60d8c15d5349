"""Promise: Spark's tasks read a bucket directly, and nothing that Spark does fences its writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing.objects import BUCKET, object_server, variables

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


def write(spark: SparkSession, **options: str) -> None:
    rows = spark.range(3_000).selectExpr("cast(id as string) as value")
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

        with pytest.raises(Exception, match="would fence its server"):
            write(spark, path=PLACE)
        write(spark, server=server.url)
        written = sorted(int(record.value) for record in ms.log("written").read())
        assert written == list(range(3_000))
        assert ms.log("orders").append(b"5001") == 5_001  # it was not fenced
