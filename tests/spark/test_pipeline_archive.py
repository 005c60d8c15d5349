"""Promise: an archive holds every record once, whoever reads it, however often its run was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Item, Millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.errors import Conflict, InvalidInput, Locked, NotFound, Truncated
from millstream.spark.archive.archive import Archive, directory_of
from millstream.spark.archive.lake import delta_table, iceberg_table
from millstream.spark.pipelines.archive import archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD = "odd, name/50% [ü]"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def path_of(store: Millstream) -> str:
    return str(store.stats()["path"])


def fill(store: Millstream, log: str, count: int) -> None:
    end = store.log(log).end_offset()
    store.log(log).append_many(
        [
            Item(
                os.urandom(i % 30),
                key=None if i % 3 else f"k{i}",
                headers={"n": i, "s": "ü", "d": i / 2, "b": i % 2 == 0} if i % 5 else None,
                timestamp=1_700_000_000_000 + i,
            )
            for i in range(end, end + count)
        ]
    )


def rows(spark: SparkSession, store: Millstream, into: Path, log: str, **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").option("path", path_of(store))
    reader = reader.option("archive", str(into)).option("subscribe", log)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def offsets(found: DataFrame) -> list[int]:
    return sorted(row[0] for row in found.select("offset").collect())


def test_a_log_goes_to_files_that_others_can_read(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 300)
    fill(store, ODD, 20)
    expected = list(store.log("orders").read())

    summary = archive(spark, path_of(store), into, logs=["orders", ODD], round_records=100)

    assert {one.log: (one.start, one.stop) for one in summary.logs} == {
        "orders": (0, 300),
        ODD: (0, 20),
    }
    assert len(Archive(into).segments("orders")) > 1

    import duckdb
    from pyarrow import dataset

    table = dataset.dataset(into, format="parquet", partitioning="hive").to_table()
    assert sorted({*table.column("log").to_pylist()}) == sorted(["orders", ODD])
    assert table.num_rows == 320
    found = duckdb.sql(
        f"select \"offset\", key, value, epoch_ms(timestamp), headers['n'].i "
        f"from read_parquet('{into}/**/*.parquet', hive_partitioning=true) "
        "where log = 'orders' order by 1"
    ).fetchall()
    assert found == [(r.offset, r.key, r.value, r.timestamp, r.headers.get("n")) for r in expected]
    plain = spark.read.parquet(str(into)).where("log = 'orders'")
    assert offsets(plain) == list(range(300))


def test_a_second_run_takes_only_what_is_new(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 50)
    assert archive(spark, path_of(store), into, logs=["orders"]).records == 50
    assert archive(spark, path_of(store), into, logs=["orders"]).records == 0
    fill(store, "orders", 30)
    again = archive(spark, path_of(store), into, pattern="ord.*")
    assert (again.logs[0].start, again.logs[0].stop) == (50, 80)
    assert offsets(spark.read.parquet(str(into))) == list(range(80))


def test_archive_and_live_log_are_one_table(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 120)
    before = {r.offset: r for r in store.log("orders").read()}
    archive(spark, path_of(store), into, logs=["orders"], keep=0)
    assert store.log("orders").start_offset() == 120
    fill(store, "orders", 30)
    before |= {r.offset: r for r in store.log("orders").read()}

    whole = rows(spark, store, into, "orders", typedHeaders="true")
    assert offsets(whole) == list(range(150))
    for row in whole.where("offset < 120").collect():
        record = before[row["offset"]]
        assert (bytes(row["value"]), row["topic"], row["partition"]) == (record.value, "orders", 0)
        assert row["key"] == (None if record.key is None else bytearray(record.key))
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(record.timestamp, abs=0.01)
        assert {k: v["i"] for k, v in row["headers"].items()}.get("n") == record.headers.get("n")
    kafka = rows(spark, store, into, "orders", includeHeaders="true").where("offset = 1").first()
    assert kafka is not None
    assert {one["key"]: bytes(one["value"]) for one in kafka["headers"]}["b"] == b"false"
    some = '{"orders": 100}', '{"orders": 130}'
    part = rows(spark, store, into, "orders", startingOffsets=some[0], endingOffsets=some[1])
    assert offsets(part) == list(range(100, 130))
    assert offsets(whole.where("offset between 110 and 125")) == list(range(110, 126))
    chosen = rows(spark, store, into, "orders", filter="n >= 118 AND b = TRUE")
    assert offsets(chosen) == [n for n in range(118, 150, 2) if n % 5]
    assert rows(spark, store, into, "orders", metadataOnly="true").count() == 150


def test_a_filter_asks_an_archive_whether_values_are_null(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    def append(first: int) -> None:
        values = [None if n % 3 == 0 else b"" for n in range(first, first + 6)]
        store.log("prices").append_many(values, headers=[{"n": first + i} for i in range(6)])

    append(0)
    archive(spark, path_of(store), into, logs=["prices"], keep=0)
    append(6)
    assert store.log("prices").start_offset() == 6  # the first half is in the archive alone
    for condition, expected in (
        ("_value IS NULL", [0, 3, 6, 9]),
        ("_value IS NOT NULL AND n > 3", [4, 5, 7, 8, 10, 11]),
    ):
        found = rows(spark, store, into, "prices", filter=condition)
        assert offsets(found) == expected  # the column value is not asked for
        nulls = {row["offset"]: row["value"] is None for row in found.collect()}
        assert nulls == {offset: offset % 3 == 0 for offset in expected}
        bare = rows(spark, store, into, "prices", filter=condition, metadataOnly="true")
        assert offsets(bare) == expected
    reader = spark.read.format("millstream").schema("offset long, _value binary")
    reader = reader.options(path=path_of(store), archive=str(into), subscribe="prices")
    with pytest.raises(Exception, match="there is no column '_value' in this read"):
        reader.load().count()


def test_a_deleted_log_is_still_in_the_archive(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 10)
    archive(spark, path_of(store), into, logs=["orders"])
    store.log("orders").delete()
    assert offsets(rows(spark, store, into, "orders")) == list(range(10))
    fill(store, "orders", 5)
    with pytest.raises(Exception, match="holds another log"):
        rows(spark, store, into, "orders").count()
    with pytest.raises(Conflict, match="holds another log"):
        archive(spark, path_of(store), into, logs=["orders"])


def test_a_log_is_truncated_behind_the_archive_as_its_retention_says(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 40)
    store.log("orders").cursor("archive", start="earliest").ack_up_to(0)
    store.log("orders").retain(consumed=True)
    store.log("orders").cursor("slow", start="earliest").ack_up_to(24)
    summary = archive(spark, path_of(store), into, logs=["orders"])
    assert summary.truncated == store.log("orders").start_offset() == 24
    assert {one.name: one.floor for one in store.log("orders").cursors()}["archive"] == 40
    assert offsets(rows(spark, store, into, "orders")) == list(range(40))


def test_what_was_truncated_too_early_is_told(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 10)
    archive(spark, path_of(store), into, logs=["orders"], truncate=False)
    fill(store, "orders", 10)
    store.log("orders").truncate(before=15)
    with pytest.raises(Truncated, match="archived up to 10 only"):
        archive(spark, path_of(store), into, logs=["orders"])
    with pytest.raises(Exception, match="offsets 10 to 14 are lost"):
        rows(spark, store, into, "orders").count()
    archive(spark, path_of(store), into, logs=["orders"], allow_gaps=True)
    found = rows(spark, store, into, "orders", failOnDataLoss="false")
    assert offsets(found) == [*range(10), *range(15, 20)]
    with pytest.raises(Exception, match="offsets 10 to 14 are lost"):
        rows(spark, store, into, "orders").count()


def test_what_a_killed_run_left_is_removed(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    fill(store, "orders", 10)
    archive(spark, path_of(store), into, logs=["orders"])
    (known,) = into.glob("log=orders/date=*/*.parquet")
    known.with_name("00000000000000000010-00000000000000000012-0.parquet").write_bytes(b"half")
    fill(store, "orders", 5)
    summary = archive(spark, path_of(store), into, logs=["orders"])
    assert (summary.left_over, summary.records) == (1, 5)
    assert offsets(spark.read.parquet(str(into))) == list(range(15))


@pytest.mark.requires("s3", "lake")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_archive_on_object_storage_is_a_table_that_others_read(
    spark: SparkSession, store: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    with object_server() as address, variables(address) as wanted:
        monkeypatch.setattr(spark.sparkContext, "environment", wanted)  # that of tasks
        into, path = f"s3://{BUCKET}/kept", path_of(store)
        for kind in ("delta", "iceberg", "delta"):
            fill(store, "orders", 20)
            fill(store, ODD, 5)
            summary = archive(
                spark, path, into, pattern="o.*", keep=0, table=kind,
                target_file_size=1_000_000, expire=0,
            )  # fmt: skip
            assert (summary.path, summary.records) == (into, 25)
        assert summary.merged == 4
        tables = {
            "delta": delta_table(into).to_pyarrow_table(),
            "iceberg": iceberg_table(into).scan().to_arrow(),
        }
        for kind, found in tables.items():
            assert len(found) == 75, kind
            counted = duckdb.sql('select topic, count(distinct "offset") from found group by 1')
            assert dict(counted.fetchall()) == {"orders": 60, ODD: 15}
        files = [name for name in Archive(into).folder.names("") if name.endswith(".parquet")]
        assert len(files) == 2


def test_small_files_are_merged_and_read_by_all(
    spark: SparkSession, store: Millstream, into: Path
) -> None:
    import duckdb

    for count in (30, 20, 10):
        fill(store, "orders", count)
        archive(spark, path_of(store), into, logs=["orders"])
    summary = archive(spark, path_of(store), into, logs=["orders"], target_file_size=1_000_000)
    assert (summary.records, summary.merged, summary.expired) == (0, 3, 3)
    assert len(list(into.glob("log=orders/date=*/*.parquet"))) == 1
    assert offsets(spark.read.parquet(str(into))) == list(range(60))
    assert offsets(rows(spark, store, into, "orders")) == list(range(60))
    found = duckdb.sql(f"select count(*) from read_parquet('{into}/**/*.parquet')").fetchall()
    assert found == [(60,)]


def test_bad_wishes_are_refused(spark: SparkSession, store: Millstream, into: Path) -> None:
    fill(store, "orders", 1)
    path = path_of(store)
    with pytest.raises(NotFound, match="no log 'other'"):
        archive(spark, path, into, logs=["other"])
    with pytest.raises(InvalidInput, match="either names of logs or a pattern"):
        archive(spark, path, into)
    with pytest.raises(InvalidInput, match="mounted share"):
        archive(spark, path, "hdfs://host/x", logs=["orders"])
    with pytest.raises(InvalidInput, match="compression is one of"):
        archive(spark, path, into, logs=["orders"], compression="zip")
    with Archive(into).writing(), pytest.raises(Locked, match="another run"):
        archive(spark, path, into, logs=["orders"])
    with pytest.raises(Exception, match="there is no archive"):
        rows(spark, store, into / "nowhere", "orders").count()


def test_long_names_get_directories_of_their_own() -> None:
    one, other = "ü" * 250 + "a", "ü" * 250 + "b"
    assert directory_of(one) != directory_of(other)
    assert max(len(directory_of(name).encode()) for name in (one, other, "#" * 255)) <= 200
    assert directory_of("a/b=c%") == "log=a%2Fb%3Dc%25"
