"""Promise: Spark gives each queue exactly what the built-in routing would give it, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Item, Millstream
from millstream.errors import Conflict, InvalidInput, NotFound, Truncated
from millstream.spark.pipelines import backfill
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.route import route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILTERS = (
    "",
    "region = 'eu' AND amount >= 10",
    "amount / 3 > 4.5 OR region IS NULL",
    "region LIKE 'u%' AND NOT express",
    "_key = 'k3' OR _timestamp > 1700000000090",
    "_log = 'returns' AND amount IN (1, 2, 30)",
    "region = 'it''s [%] (odd)'",
    "_value IS NULL OR amount > 35",
    "_value IS NOT NULL AND region = 'eu'",
)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


def path_of(store: Millstream) -> str:
    return str(store.stats()["path"])


def fill(store: Millstream, log: str, count: int) -> None:
    regions = ("eu", "us", "it's [%] (odd)", 7, None)
    end = store.log(log).end_offset()
    store.log(log).append_many(
        [
            Item(
                {"n": n} if n % 7 != 6 else None,
                key=f"k{n % 5}",
                headers={
                    "region": regions[n % 5],
                    "amount": n / 2 if n % 2 else n,
                    "express": n % 3 == 0,
                }
                if n % 11
                else None,
                timestamp=1_700_000_000_000 + n,
            )
            for n in range(end, end + count)
        ]
    )


def held(store: Millstream, queue: str) -> list[tuple[str, int]]:
    return sorted((m.log, m.offset) for m in store.queue(queue).claim(10_000))


@pytest.mark.parametrize("enrich", ["select * from records", None], ids=["enriched", "stored"])
def test_spark_agrees_with_the_built_in_routing(
    spark: SparkSession, store: Millstream, enrich: str | None
) -> None:
    fill(store, "orders", 80)
    fill(store, "returns", 40)
    for number, text in enumerate(FILTERS):
        sources = ["orders", "ret*"] if number % 2 else ["returns"]
        for router in ("", "spark"):
            store.queue(
                f"{router}{number}", sources=sources, filter=text, start="earliest", router=router
            )
    summary = route(spark, path_of(store), round_records=50, enrich=enrich)
    assert (summary.records, summary.rounds) == (120, 3)
    fill(store, "returns", 10)
    assert route(spark, path_of(store), enrich=enrich).records == 10
    assert route(spark, path_of(store), enrich=enrich).records == 0
    total = 0
    for number in range(len(FILTERS)):
        expected = held(store, str(number))
        assert held(store, f"spark{number}") == expected, FILTERS[number]
        total += len(expected)
    assert total > 100
    assert all(one.behind == 0 for one in summary.queues)


@pytest.mark.parametrize("enrich", ["select * from records", None], ids=["enriched", "stored"])
def test_a_queue_may_have_a_comma_in_its_name(
    spark: SparkSession, store: Millstream, enrich: str | None
) -> None:
    fill(store, "orders", 10)
    for name in ("berlin, spare", "spare"):
        settings = {"sources": ["orders"], "filter": "_timestamp >= 1700000000004"}
        store.queue(name, router="spark", start="earliest", **settings)
    assert route(spark, path_of(store), enrich=enrich).assigned == 12
    expected = [("orders", n) for n in range(4, 10)]
    assert held(store, "berlin, spare") == held(store, "spare") == expected


def test_records_can_be_enriched(spark: SparkSession, store: Millstream) -> None:
    fill(store, "orders", 20)
    store.queue("vip", sources=["orders"], filter="tier = 'gold'", start="earliest", router="spark")
    customers = spark.createDataFrame([("k1", "gold"), ("k2", "tin")], "id string, tier string")

    def enrich(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        tier = f.expr("map('tier', named_struct('s', tier, 'i', cast(null as bigint), 'd', "
                      "cast(null as double), 'b', cast(null as boolean)))")  # fmt: skip
        joined = records.join(customers, f.expr("cast(key as string) = id"))
        return joined.withColumn("headers", tier).drop("id", "tier")

    assert route(spark, path_of(store), enrich=enrich).assigned == 4
    assert [offset for _, offset in held(store, "vip")] == [1, 6, 11, 16]
    store.queue("late", sources=["orders"], filter="n > 17", start="earliest", router="spark")
    sql = (
        "select * except(headers), map('n', named_struct('s', cast(null as string), 'i', "
        "cast(get_json_object(cast(value as string), '$.n') as bigint), 'd', cast(null as double), "
        "'b', cast(null as boolean))) as headers from records"
    )
    assert route(spark, path_of(store), queues=["late"], enrich=sql, values=True).assigned == 2
    fill(store, "orders", 1)
    with pytest.raises(InvalidInput, match="no column 'offset'"):
        route(spark, path_of(store), enrich="select topic from records")


def test_a_new_queue_is_backfilled_from_the_archive(
    spark: SparkSession, store: Millstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "orders", 60)
    archive(spark, path_of(store), tmp_path / "archive", logs=["orders"], keep=0)
    fill(store, "orders", 20)
    options: dict[str, Any] = {"sources": ["orders"], "filter": "region = 'eu'", "router": "spark"}
    store.queue("new", start="earliest", **options)
    expected = [n for n in range(80) if n % 5 == 0 and n % 11]

    def point(name: str) -> None:
        if name == "backfill written":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(backfill, "point", point)
        with pytest.raises(Killed):
            route(spark, path_of(store), backfill=str(tmp_path / "archive"))
    summary = route(spark, path_of(store), backfill=str(tmp_path / "archive"))
    assert (summary.assigned, summary.backfilled) == (len([n for n in expected if n >= 60]), 0)
    again = route(spark, path_of(store), backfill=str(tmp_path / "archive"))
    assert (again.assigned, again.backfilled) == (0, 0)
    claimed = store.queue("new").claim(1_000)
    found = [one.json()["n"] for one in claimed if one.value is not None]
    assert sorted(found) == [n for n in expected if n % 7 != 6]
    assert len(claimed) == len(expected), "tombstones are copied, too"

    store.queue("used", start="earliest", **options).put("by hand")
    store.queue("used").peek(1)
    with pytest.raises(Conflict, match="has messages already"):
        route(spark, path_of(store), queues=["used"], backfill=str(tmp_path / "archive"))


def test_records_that_are_gone_are_told(spark: SparkSession, store: Millstream) -> None:
    fill(store, "orders", 10)
    store.queue("slow", sources=["orders"], start="earliest", router="spark")
    store.log("orders").truncate(before=4)
    with pytest.raises(Truncated, match="queue 'slow' has come to 0 only"):
        route(spark, path_of(store))
    assert route(spark, path_of(store), allow_gaps=True).assigned == 6
    assert [offset for _, offset in held(store, "slow")] == list(range(4, 10))


def test_bad_wishes_are_refused(spark: SparkSession, store: Millstream) -> None:
    with pytest.raises(NotFound, match="no queue of this store is routed by Spark"):
        route(spark, path_of(store))
    store.queue("own", sources=["orders"])
    with pytest.raises(InvalidInput, match="routes its messages itself"):
        route(spark, path_of(store), queues=["own"])
    with pytest.raises(NotFound, match="no queue 'none'"):
        route(spark, path_of(store), queues=["none"])
    with pytest.raises(InvalidInput, match="list of queue names"):
        route(spark, path_of(store), queues="own")
