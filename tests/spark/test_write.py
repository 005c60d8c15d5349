"""Promise: what Spark writes is there as a whole, once, or not at all."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Item, Millstream
from millstream.errors import Conflict
from millstream.spark.pipelines.archive import archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


def write(rows: DataFrame, store: Millstream, mode: str = "append", **options: Any) -> None:
    writer = rows.write.format("millstream").mode(mode).option("path", store.stats()["path"])
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as value")


def values(store: Millstream, log: str) -> list[int]:
    return sorted(int(record.value) for record in store.log(log).read())


def staged(store: Millstream) -> Path:
    return Path(store.stats()["path"] + "-staging")


def test_rows_come_back_as_they_were_written(spark: SparkSession, store: Millstream) -> None:
    store.log("from").append_many(
        [
            Item(
                os.urandom(i % 40),
                key=None if i % 2 else f"k{i}",
                headers={"n": i, "s": "ü", "d": 0.5, "b": i % 3 == 0, "none": None}
                if i % 7
                else None,
                timestamp=1_700_000_000_000 + i,
            )
            for i in range(2_000)
        ]
    )
    path = store.stats()["path"]
    reader = spark.read.format("millstream").option("path", path).option("subscribe", "from")
    rows = reader.option("typedHeaders", "true").option("minPartitions", 3).load()

    write(rows.select("headers", "value", "timestamp", "key"), store, log="to")

    def of(log: str) -> list[Any]:
        found = store.log(log).read()
        return [(r.offset, r.value, r.key, dict(r.headers), r.timestamp) for r in found]

    assert of("to") == of("from")
    assert not staged(store).exists()


@pytest.mark.parametrize("count", [0, 1, 2, 25_000])
def test_any_number_of_rows(spark: SparkSession, store: Millstream, count: int) -> None:
    write(numbers(spark, count), store, log="to")
    assert values(store, "to") == list(range(count))


def test_kafkas_headers_and_plain_maps_can_be_written(
    spark: SparkSession, store: Millstream
) -> None:
    row = spark.range(1).selectExpr(
        "'v' as value", "array(named_struct('key', 'a', 'value', cast('1' as binary))) as headers"
    )
    write(row, store, log="to")
    write(spark.range(1).selectExpr("'v' as value", "map('b', 2L) as headers"), store, log="to")
    assert [record.headers for record in store.log("to").read()] == [{"a": "1"}, {"b": 2}]


def test_any_records_in_kafkas_form_come_back_equal(spark: SparkSession, store: Millstream) -> None:
    chance = random.Random(1)
    rows = [
        (
            None if chance.random() < 0.3 else chance.randbytes(3),
            None if chance.random() < 0.3 else chance.randbytes(2),
            [
                (chance.choice("abé"), chance.choice([None, b"", b"\xff\x00", b"1", "ü".encode()]))
                for _ in range(chance.randrange(5))
            ],
        )
        for _ in range(300)
    ]
    schema = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    write(spark.createDataFrame(rows, schema).coalesce(1), store, log="to")
    path = store.stats()["path"]
    reader = spark.read.format("millstream").option("path", path).option("subscribe", "to")
    found = reader.option("includeHeaders", True).load().orderBy("offset").collect()
    same = [(row.key, row.value, [(one.key, one.value) for one in row.headers]) for row in found]
    assert same == rows
    assert [(one.key, one.value) for one in store.log("to").read()] == [row[:2] for row in rows]
    assert reader.load().where("value is null").count() == sum(row[1] is None for row in rows)


def test_a_queue_gets_messages(spark: SparkSession, store: Millstream) -> None:
    queue = store.queue("work", lease=30)
    write(numbers(spark, 100), store, queue="work")
    claimed = queue.claim(200)
    assert sorted(int(message.value) for message in claimed) == list(range(100))


def test_each_row_goes_to_the_log_that_it_names(spark: SparkSession, store: Millstream) -> None:
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "cast(id as string) as value", "concat('tenant-', id % 300) as topic"
    )
    for _ in range(2):
        write(rows, store, txnAppId="load", txnVersion=1)
    found = {info.name: info for info in store.logs() if info.name.startswith("tenant-")}
    assert len(found) == 300
    assert {info.end_offset for info in found.values()} == {10}
    assert values(store, "tenant-7") == list(range(7, 3_000, 300))
    assert not staged(store).exists()
    broken = rows.selectExpr("value", "if(value = '2999', null, topic) as topic")
    with pytest.raises(Exception, match="has no topic"):
        write(broken, store)
    assert store.log("tenant-7").end_offset() == 10
    with pytest.raises(Exception, match="where do the rows go"):
        write(numbers(spark, 1), store)


def test_a_failed_job_leaves_nothing(spark: SparkSession, store: Millstream) -> None:
    broken = spark.range(0, 40_000, 1, 2).selectExpr(
        "if(id = 39999, cast(raise_error('no luck') as string), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="no luck"):
        write(broken, store, log="to")
    assert store.log("to").end_offset() == 0
    assert not staged(store).exists()


def test_the_same_version_is_written_once(spark: SparkSession, store: Millstream) -> None:
    for version, count in ((3, 5), (3, 9), (2, 9), (4, 1)):
        write(numbers(spark, count), store, log="to", txnAppId="app", txnVersion=version)
    write(numbers(spark, 2), store, log="to", txnAppId="other", txnVersion=0)
    assert values(store, "to") == [0, 0, 0, 1, 1, 2, 3, 4]


def test_a_stream_writes_each_batch_once(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("from").append_many([b"%d" % i for i in range(300)])

    def run() -> None:
        reader = spark.readStream.format("millstream").option("path", store.stats()["path"])
        rows = reader.option("subscribe", "from").option("startingOffsets", "earliest")
        query = (
            rows.option("maxOffsetsPerTrigger", 100)
            .load()
            .select("value")
            .writeStream.format("millstream")
            .option("path", store.stats()["path"])
            .option("log", "to")
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert values(store, "to") == list(range(300))

    # As if the driver had died after the commit, before Spark noted it.
    commits = sorted((tmp_path / "cp" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    store.log("from").append_many([b"%d" % i for i in range(300, 310)])
    run()
    assert values(store, "to") == list(range(310))


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("'x' as v", {"log": "to"}, "a column 'value' is needed; there are v"),
        ("'x' as value, 1 as extra", {"log": "to"}, "the column 'extra' would not be written"),
        ("1 as value", {"log": "to"}, "key and value are binary or string, not int"),
        ("'x' as value", {}, "where do the rows go\\? expected one of the options log"),
        ("'x' as value", {"log": "a", "queue": "b"}, "expected one of the options log"),
        ("'x' as value", {"queue": "nowhere"}, "there is no queue 'nowhere'"),
        ("'x' as value", {"log": "to", "txnAppId": "a"}, "expected both or neither"),
        ("'x' as value, 5 as timestamp", {"log": "to"}, "timestamp is a timestamp"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, store: Millstream, select: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        write(spark.range(1).selectExpr(*select.split(", ")), store, **options)
    assert store.log("to").end_offset() == 0


def counted(spark: SparkSession, store: Millstream) -> DataFrame:
    """How many records each value's first letter has, as a stream."""
    reader = spark.readStream.format("millstream").option("path", store.stats()["path"])
    rows = reader.option("subscribe", "from").option("startingOffsets", "earliest").load()
    return rows.selectExpr("substr(string(value), 1, 1) as letter").groupBy("letter").count()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("update", "millstream does not support Update mode"),  # Spark says so, before it asks us
        ("complete", r'as outputMode\("complete"\) asks for: take outputMode\("append"\), or'),
    ],
)
def test_streams_that_change_what_was_written_are_refused(
    spark: SparkSession, store: Millstream, tmp_path: Path, mode: str, expected: str
) -> None:
    store.log("from").append(b"a1")
    rows = counted(spark, store).selectExpr("letter as value").writeStream.outputMode(mode)
    rows = rows.format("millstream").option("path", store.stats()["path"]).option("log", "to")
    with pytest.raises(Exception, match=expected):
        rows.option("checkpointLocation", str(tmp_path / "no")).start().awaitTermination()
    assert store.log("to").end_offset() == 0


def test_changed_counts_are_stored_once_by_foreach_batch(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    counts, tried = counted(spark, store), list[int]()

    def keep(rows: DataFrame, batch: int) -> None:
        made = rows.selectExpr("concat(letter, string(count)) as value")
        write(made, store, log="to", txnAppId="counts", txnVersion=batch)
        tried.append(batch)
        if tried == [0]:
            raise OSError("stored, but Spark does not know")

    def run() -> None:
        query = counts.writeStream.outputMode("update").foreachBatch(keep)
        query = query.option("checkpointLocation", str(tmp_path / "cp"))
        query.trigger(availableNow=True).start().awaitTermination()

    store.log("from").append_many([b"a1", b"a2", b"b1"])
    with pytest.raises(Exception, match="stored, but Spark does not know"):
        run()
    run()
    store.log("from").append(b"b2")
    run()
    assert tried == [0, 0, 1]
    found = [record.value for record in store.log("to").read()]
    assert (sorted(found[:2]), found[2:]) == ([b"a2", b"b1"], [b"b2"])


def test_values_of_megabytes_are_written_and_read_whole(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    values = [os.urandom(5_000_000) for _ in range(3)]
    store.log("from").append_many(values)
    path = store.stats()["path"]
    rows = spark.read.format("millstream").option("path", path).option("subscribe", "from").load()
    write(rows.select("value"), store, log="to")
    assert sorted(record.value for record in store.log("to").read()) == sorted(values)
    archive(spark, path, tmp_path / "kept", logs=["to"], keep=0)
    both = spark.read.format("millstream").option("path", path).option("subscribe", "to")
    kept = both.option("archive", str(tmp_path / "kept")).load()
    found = kept.selectExpr("sha2(value, 256) as digest").collect()
    expected = sorted(hashlib.sha256(value).hexdigest() for value in values)
    assert sorted(row.digest for row in found) == expected


def test_two_queries_that_are_started_together_each_copy_every_row_once(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("from").append_many([b"%d" % n for n in range(300)])
    path = store.stats()["path"]
    reader = spark.readStream.format("millstream").option("path", path)
    reader = reader.option("subscribe", "from").option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", 150).load().select("value")
    queries = [
        rows.writeStream.format("millstream")
        .option("path", path)
        .option("log", log)
        .option("checkpointLocation", str(tmp_path / log))
        .trigger(availableNow=True)
        .start()
        for log in ("one", "two")
    ]
    for query in queries:
        query.awaitTermination()
    for log in ("one", "two"):
        assert [int(record.value) for record in store.log(log).read()] == list(range(300))


def test_overwriting_is_refused_with_advice(spark: SparkSession, store: Millstream) -> None:
    store.log("to").append(b"1")
    with pytest.raises(Exception, match="cannot be overwritten: write with"):
        write(numbers(spark, 1), store, mode="overwrite", log="to")
    assert values(store, "to") == [1]


# What the commit checks, without Spark.


def staged_file(store: Millstream, txn: str = "t") -> Any:
    from millstream.format.packing import pack_batch
    from millstream.limits import Limits
    from millstream.spark.sink.disk_staging import stage

    batch = pack_batch([b"1", b"2"], keys=None, headers=None, timestamps=None, limits=Limits())
    return stage(store.stats()["path"], txn, "0-7", [("", batch)], Limits())


def commit(store: Millstream, *files: Any) -> Any:
    from millstream.spark.sink.disk_staging import publish

    return publish(store.session, store.stats()["path"], "to", list(files), None)  # type: ignore[arg-type]


def test_a_listed_block_must_be_what_was_staged(store: Millstream) -> None:
    from msgspec.structs import replace

    good = staged_file(store)
    block = good.blocks[0]
    lies = [
        replace(good, txn="another"),
        replace(good, blocks=[replace(block, size=block.size - 1)]),
        replace(good, blocks=[replace(block, crc=block.crc ^ 1)]),
        replace(good, blocks=[block, block]),
        replace(good, name="gone"),
    ]
    for lie in lies:
        with pytest.raises(Conflict, match="nothing was published"):
            commit(store, good, lie)
    file = next(staged(store).rglob("0-7-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(Conflict, match="bytes are not what was staged"):
        commit(store, good)
    assert store.log("to").end_offset() == 0

    assert commit(store, staged_file(store)) == 2
    assert values(store, "to") == [1, 2]


def test_the_doctor_finds_nothing_wrong(tmp_path: Path) -> None:
    from millstream.doctor import examine
    from millstream.spark.sink.disk_staging import publish
    from millstream.spark.sink.publishing import Version

    with millstream.open(tmp_path / "store.db") as store:
        path = store.stats()["path"]
        for number in (0, 0, 7):
            file = staged_file(store)
            publish(store.session, path, "to", [file], Version("app", number))  # type: ignore[arg-type]
        store.fold()
        assert values(store, "to") == [1, 1, 2, 2]
    report = examine(path)
    assert (report.healthy, report.problems) == (True, [])


def test_leftovers_go_after_a_week_and_not_before(store: Millstream) -> None:
    from millstream.clock import SystemClock
    from millstream.spark.sink.disk_staging import LEFTOVER_MS, sweep

    staged_file(store)
    path, now_ms = store.stats()["path"], SystemClock().wall_ms()
    sweep(path, now_ms=now_ms + LEFTOVER_MS - 60_000)
    assert staged(store).exists()
    sweep(path, now_ms=now_ms + LEFTOVER_MS + 60_000)
    assert not staged(store).exists()


def test_more_than_memory_should_hold_is_one_commit(
    store: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.store.commit import draft

    monkeypatch.setattr(draft, "MEMORY_BYTES_MAX", 1)
    monkeypatch.setattr(draft, "SPOOLED_BYTES_MIN", 1)
    before = store.stats()["sequence"]
    assert commit(store, staged_file(store), staged_file(store)) == 4
    assert store.stats()["sequence"] == before + 1
    assert values(store, "to") == [1, 1, 2, 2]
