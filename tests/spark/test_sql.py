"""Promise: logs are tables of SQL: made, read, joined and added to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Millstream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        opened.log("orders").append_many([b"%d" % i for i in range(10)])
        yield opened


@pytest.fixture
def path(store: Millstream) -> str:
    found: str = store.stats()["path"]
    return found


def test_a_table_is_read(spark: SparkSession, path: str) -> None:
    spark.sql(f"CREATE TABLE orders USING millstream OPTIONS (path '{path}', subscribe 'orders')")
    found = spark.sql("SELECT max(offset), sum(cast(cast(value AS string) AS int)) FROM orders")
    assert tuple(found.first()) == (9, 45)
    assert spark.table("orders").columns[:3] == ["key", "value", "topic"]


def test_a_table_sees_what_came_after_it_was_made(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    spark.sql(f"CREATE TABLE orders USING millstream OPTIONS (path '{path}', subscribe 'orders')")
    store.log("orders").append(b"10")
    assert spark.sql("SELECT count(*) FROM orders").first()[0] == 11


def test_a_temporary_view_is_read_and_joined(spark: SparkSession, path: str) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW recent USING millstream "
        f"OPTIONS (path '{path}', subscribe 'orders', startingOffsets '{{\"orders\": 7}}')"
    )
    spark.range(20).createOrReplaceTempView("numbers")
    found = spark.sql(
        "SELECT n.id FROM recent r JOIN numbers n ON cast(cast(r.value AS string) AS int) = n.id"
    )
    assert sorted(row.id for row in found.collect()) == [7, 8, 9]
    spark.catalog.dropTempView("recent")


def test_rows_are_inserted_through_a_temporary_view(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW door USING millstream OPTIONS (path '{path}', log 'sunk')")
    spark.sql("INSERT INTO door (key, value) VALUES (X'61', X'78'), (NULL, X'79')")
    spark.sql("INSERT INTO door (value) SELECT cast(cast(id AS string) AS binary) FROM range(3)")
    found = [(record.key, record.value) for record in store.log("sunk").read()]
    assert found == [(b"a", b"x"), (None, b"y"), (None, b"0"), (None, b"1"), (None, b"2")]
    assert spark.sql("SELECT * FROM door WHERE key IS NULL").count() == 4
    spark.catalog.dropTempView("door")


def test_rows_are_inserted_into_a_table_that_is_told_where_it_is(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    queue = store.queue("work", lease=30)
    spark.sql(f"CREATE TABLE sink USING millstream OPTIONS (path '{path}', queue 'work')")
    with pytest.raises(Exception, match="hands the options of a table to no write"):
        spark.sql("INSERT INTO sink (value) VALUES (X'78')")
    spark.sql(f"INSERT INTO sink WITH (`path` = '{path}', `queue` = 'work') (value) VALUES (X'78')")
    assert [message.value for message in queue.claim(5)] == [b"x"]


def test_rows_never_go_back_to_where_they_come_from(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    """What a table notes of itself travels with its rows, and must not decide where they go."""
    for table, log in (("orders", "orders"), ("sink", "sunk")):
        spark.sql(f"CREATE TABLE {table} USING millstream OPTIONS (path '{path}', log '{log}')")
    with pytest.raises(Exception, match="hands the options of a table to no write"):
        spark.sql("INSERT INTO sink SELECT * FROM orders")
    rows = spark.table("orders")
    writer = rows.write.format("millstream").mode("append").option("path", path)
    writer.option("log", "sunk").save()
    rows.writeTo("sink").option("path", path).option("log", "sunk").append()
    assert store.log("orders").end_offset() == 10
    assert store.log("sunk").end_offset() == 20


def test_options_are_said_with_a_use_of_a_table(spark: SparkSession, path: str) -> None:
    spark.sql("CREATE TABLE orders (offset BIGINT) USING millstream OPTIONS (path '/a', log 'b')")
    with pytest.raises(Exception, match="Spark hands no options over"):
        spark.sql("SELECT * FROM orders").collect()
    found = spark.sql(
        f"SELECT max(offset) FROM orders WITH (`path` = '{path}', `subscribe` = 'orders')"
    )
    assert found.first()[0] == 9


def test_a_stream_reads_a_table_and_says_where_it_writes(
    spark: SparkSession, store: Millstream, path: str, tmp_path: Path
) -> None:
    spark.sql(
        "CREATE TABLE orders USING millstream "
        f"OPTIONS (path '{path}', subscribe 'orders', startingOffsets 'earliest')"
    )
    rows = spark.readStream.table("orders").select("key", "value", "timestamp")
    writer = rows.writeStream.format("millstream").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "cp"))
    with pytest.raises(Exception, match="one option says where the store is"):
        writer.start().awaitTermination()
    writer.option("path", path).option("log", "sunk").start().awaitTermination()
    assert [int(record.value) for record in store.log("sunk").read()] == list(range(10))


def test_a_token_is_kept_out_of_the_catalog(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="option token: would be visible to all users") as caught:
        spark.sql(
            "CREATE TABLE orders USING millstream "
            "OPTIONS (server 'http://127.0.0.1:1', subscribe 'a', token 'tiger')"
        )
    assert "tiger" not in str(caught.value)


def test_inserting_over_what_is_there_is_refused(
    spark: SparkSession, store: Millstream, path: str
) -> None:
    store.log("sunk").append(b"a")
    spark.sql(f"CREATE TEMPORARY VIEW door USING millstream OPTIONS (path '{path}', log 'sunk')")
    with pytest.raises(Exception, match=r"cannot be overwritten|does not support"):
        spark.sql("INSERT OVERWRITE door VALUES (NULL, X'78', NULL)")
    assert [record.value for record in store.log("sunk").read()] == [b"a"]
    spark.catalog.dropTempView("door")
