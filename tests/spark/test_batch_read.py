"""Promise: a batch read gives every record of the logs it names, as it was appended, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Item, Millstream, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCKS, ROWS = 4, 500


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    """Blocks with keys and headers, singles that were folded together, and a block of plain values."""
    with millstream.open(tmp_path / "store.db") as opened:
        log = opened.log("orders")
        for block in range(BLOCKS):
            log.append_many(
                [
                    Item(
                        b"%d.%d" % (block, i),
                        key=None if i % 3 == 0 else f"k{i}",
                        headers={"n": i, "region": "eu" if i % 2 else "us"} if i % 5 else None,
                        timestamp=1_000_000 * (block + 1) + i,
                    )
                    for i in range(ROWS)
                ]
            )
        for i in range(30):
            log.append(bytes([i]), key="single", timestamp=9_000_000 + i)
        opened.fold()
        opened.log("plain").append_many([b"", b"\x00\xff", "grün".encode()])
        yield opened


def load(spark: SparkSession, store: Millstream, **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").option("path", store.stats()["path"])
    for name, value in ({"subscribe": "orders"} | options).items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load()


def records(rows: DataFrame) -> list[tuple[Any, ...]]:
    found = rows.selectExpr(
        "topic", "offset", "value", "unix_millis(timestamp)", "key", "unix_millis(appendTimestamp)"
    )
    return sorted(
        (row[0], row[1], bytes(row[2]), row[3], row[4] and bytes(row[4]), row[5])
        for row in found.collect()
    )


def expected(found: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.log, r.offset, r.value, r.timestamp, r.key, r.appended) for r in found]


def test_every_record_arrives_as_it_was_appended(spark: SparkSession, store: Millstream) -> None:
    logs = [*store.log("orders").read(), *store.log("plain").read()]

    rows = load(spark, store, subscribe="orders, plain", minPartitions=3)

    assert records(rows) == sorted(expected(logs))
    assert {row.partition for row in rows.select("partition").distinct().collect()} == {0}


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_pieces_meet_without_gap_or_overlap(
    spark: SparkSession, store: Millstream, partitions: int
) -> None:
    rows = load(spark, store, minPartitions=partitions)

    assert rows.rdd.getNumPartitions() == partitions
    offsets = sorted(row.offset for row in rows.select("offset").collect())
    assert offsets == list(range(BLOCKS * ROWS + 30))


def test_offsets_may_be_given_by_log_and_by_time(spark: SparkSession, store: Millstream) -> None:
    some = load(
        spark,
        store,
        subscribe="orders,plain",
        startingOffsets='{"orders": 1990, "plain": {"0": 1}}',
        endingOffsets='{"orders": 2010, "plain": -1}',
    )
    by_log = {row["topic"]: row["count"] for row in some.groupBy("topic").count().collect()}
    assert by_log == {"orders": 20, "plain": 2}

    appended = store.log("orders").get(ROWS).appended
    later = load(spark, store, startingTimestamp=appended, endingTimestamp=appended + 10**9)
    first = min(row.offset for row in later.select("offset").collect())
    found = list(store.log("orders").read())
    assert first == next(record.offset for record in found if record.appended >= appended)


def test_headers_come_in_kafkas_form_and_typed(spark: SparkSession, store: Millstream) -> None:
    kafka = load(spark, store, includeHeaders="true").where("offset = 7").first()
    assert [(one.key, bytes(one.value)) for one in kafka.headers] == [
        ("n", b"7"),
        ("region", b"eu"),
    ]

    typed = load(spark, store, typedHeaders="true").where("offset in (5, 7)").orderBy("offset")
    without, with_headers = typed.collect()
    assert without.headers == {}
    assert with_headers.headers["n"].i == 7
    assert with_headers.headers["region"].s == "eu"


def test_typed_headers_have_the_types_that_were_appended(
    spark: SparkSession, store: Millstream
) -> None:
    sent = {"s": "ü", "i": -(2**63), "d": float("inf"), "b": False, "x": b"\xff", "none": None}
    store.log("types").append(b"x", headers=sent)

    row = load(spark, store, subscribe="types", typedHeaders="true").first()

    found = {name: tuple(value) for name, value in row.headers.items()}
    assert found == {
        "s": ("ü", None, None, None, None, None),
        "i": (None, -(2**63), None, None, None, None),
        "d": (None, None, float("inf"), None, None, None),
        "b": (None, None, None, False, None, None),
        "x": (None, None, None, None, b"\xff", None),
        "none": (None, None, None, None, None, None),
    }


def test_metadata_alone_has_no_values_and_a_schema_chooses_columns(
    spark: SparkSession, store: Millstream
) -> None:
    rows = load(spark, store, metadataOnly="true")
    assert "value" not in rows.columns
    assert rows.count() == BLOCKS * ROWS + 30

    path = store.stats()["path"]
    reader = spark.read.format("millstream").schema("offset bigint, key binary")
    some = reader.option("subscribe", "orders").load(path)
    assert some.columns == ["offset", "key"]
    assert some.where("key is null").count() == BLOCKS * len(range(0, ROWS, 3))
    with pytest.raises(Exception, match="column 'offset' is bigint, not string"):
        spark.read.format("millstream").schema("offset string").option("subscribe", "orders").load(
            path
        ).collect()


def test_a_filter_over_headers_chooses_records(spark: SparkSession, store: Millstream) -> None:
    rows = load(spark, store, filter="region = 'eu' AND n < 100")

    found = records(rows)

    wanted = [
        record
        for record in store.log("orders").read()
        if record.headers.get("region") == "eu" and record.headers["n"] < 100  # type: ignore[operator]
    ]
    assert found == expected(wanted)
    assert len(found) == BLOCKS * 40


def test_a_filter_chooses_by_whether_the_value_is_null(
    spark: SparkSession, store: Millstream
) -> None:
    store.log("users").append_many([b"", None, b"x", None])
    for text, wanted in (("_value IS NULL", [1, 3]), ("_value IS NOT NULL", [0, 2])):
        rows = load(spark, store, subscribe="users", filter=text)
        assert sorted(row.offset for row in rows.select("offset").collect()) == wanted


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_sparks_filters_give_the_same_rows_pushed_or_not(
    spark: SparkSession, store: Millstream, pushed: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    rows = load(spark, store, subscribe="orders,plain")
    all_of_them = rows.cache().collect()
    for condition, keep in (
        ("offset >= 1995 and offset < 2005", lambda r: 1995 <= r.offset < 2005),
        ("offset = 3 or offset = 9", lambda r: r.offset in (3, 9)),
        ("offset in (1, 2, 77) and topic = 'plain'", lambda r: r.offset < 3 and r.topic == "plain"),
        ("partition = 1", lambda r: False),
        (
            "timestamp < timestamp_millis(2000003) and timestamp > timestamp_millis(1000498)",
            lambda r: r.topic == "orders" and r.offset in (499, 500, 501, 502),
        ),
    ):
        found = load(spark, store, subscribe="orders,plain").where(condition).collect()
        wanted = [row for row in all_of_them if keep(row)]
        if "in (1, 2, 77)" in condition:
            wanted = [row for row in wanted if row.offset]
        assert sorted(map(str, found)) == sorted(map(str, wanted)), condition
    rows.unpersist()


def test_options_and_conditions_on_offsets_choose_what_is_read(
    spark: SparkSession, store: Millstream
) -> None:
    """What the scan hands to Spark is counted by Spark itself, before it filters."""
    total = BLOCKS * ROWS + 30
    assert scanned(load(spark, store)) == total
    assert scanned(load(spark, store).where("offset >= 2020")) == 10
    assert scanned(load(spark, store).where("offset % 2 = 0")) == total
    assert scanned(load(spark, store, startingOffsets='{"orders": 2020}')) == 10


def scanned(rows: DataFrame) -> int:
    plan = rows._jdf.queryExecution().executedPlan()
    rows._jdf.queryExecution().toRdd().count()
    while plan.children().size():
        plan = plan.children().head()
    return int(plan.metrics().get("numOutputRows").get().value())


def test_truncated_offsets_follow_fail_on_data_loss(spark: SparkSession, store: Millstream) -> None:
    store.log("orders").truncate(before=600)
    start = '{"orders": 100}'
    with pytest.raises(
        Exception, match=r"begins at 600, so offsets 100 to 599 are lost.*failOnData"
    ):
        load(spark, store, startingOffsets=start).collect()

    rows = load(spark, store, startingOffsets=start, failOnDataLoss="false")
    assert rows.selectExpr("min(offset)").first()[0] == 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": None}, "exactly one of the options subscribe"),
        ({"subscribePattern": "o.*"}, "got subscribe and subscribePattern"),
        (
            {"subscribe": None, "subscribePattern": "("},
            "option subscribePattern: expected a regular",
        ),
        (
            {"startingOffsets": "soon"},
            "option startingOffsets: expected 'earliest', 'latest' or JSON",
        ),
        ({"startingOffsets": '{"orders": {"1": 5}}'}, "names the log 'orders-partition-1', which"),
        ({"startingOffsets": '{"orders": {"one": 5}}'}, "option startingOffsets: expected"),
        ({"startingOffsets": '{"other": 5}'}, "names the log 'other', which is not read"),
        ({"startingOffset": "earliest"}, "unknown option startingoffset; did you mean startingOff"),
        ({"minPartitions": "0"}, "option minPartitions: expected a whole number from 1"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: expected true or false, not 'maybe'"),
        ({"filter": "a ="}, "option filter: "),
        ({"cursor": "c"}, "option cursor: is for readStream"),
        ({"subscribe": "nowhere"}, "there is no log 'nowhere'"),
        ({"path": "/nowhere/store.db"}, "there is no store at /nowhere/store.db"),
        ({"server": "http://127.0.0.1:1"}, "expected exactly one"),
        ({"token": "tiger"}, "option token: is for the address of a server"),
        ({"includeHeaders": "true", "typedHeaders": "true"}, "only one of them"),
        ({"state": "done"}, "option state: is for the option queue"),
    ],
)
def test_an_error_names_the_option_and_what_was_expected(
    spark: SparkSession, store: Millstream, options: dict[str, str | None], message: str
) -> None:
    with pytest.raises(Exception, match="(?s)" + message.replace("(", r"\(")) as caught:
        load(spark, store, **options).collect()
    assert "tiger" not in str(caught.value)


def test_a_store_that_is_only_read_is_not_changed(spark: SparkSession, store: Millstream) -> None:
    before = store.stats()["sequence"]
    load(spark, store).collect()
    assert store.stats()["sequence"] == before


def test_an_empty_log_and_an_empty_range_give_no_rows(
    spark: SparkSession, store: Millstream
) -> None:
    store.log("empty").truncate(before=5, past_end=True)
    assert load(spark, store, subscribe="empty").count() == 0
    assert load(spark, store, startingOffsets='{"orders": -1}').count() == 0
