"""Promise: a continuous table has every record once, and follows the schema of its logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.spark.archive.folders import folder_of
from millstream.spark.archive.iceberg import catalog_of, name_of
from millstream.spark.pipelines.table import TableSummary, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requires("lake"), pytest.mark.filterwarnings("ignore")]

KINDS = ("delta", "iceberg")
PATIENCE_S = 120.0
FIELDS = {"id": {"type": "integer"}, "land": {"type": "string"}}


def schema(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**FIELDS, **more}, "required": ["id"]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


def run(spark: SparkSession, store: Millstream, path: Path, **options: Any) -> TableSummary:
    chosen = {"logs": ["orders"], "once": True, **options}
    return table(spark, str(store.stats()["path"]), path, **chosen)


def fill(store: Millstream, start: int, count: int, **more: Any) -> None:
    store.log("orders").append_many(
        [json.dumps({"id": n, "land": "DE", **more}).encode() for n in range(start, start + count)],
        keys=[f"k{n % 10}" for n in range(start, start + count)],
    )


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(path)).to_pyarrow_table()
    else:
        folder = folder_of(path)
        found = catalog_of(folder, "").load_table(name_of(folder)).scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["offset"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_adds_what_is_new_and_the_columns_of_new_versions(
    spark: SparkSession, store: Millstream, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "lake"
    store.log("orders", schema=schema())
    fill(store, 0, 100)
    first = run(spark, store, path, kind=kind, partition_by="land")
    assert (first.records, first.commits, first.behind) == (100, 1, 0)
    assert run(spark, store, path, kind=kind, partition_by="land").commits == 0
    store.log("orders", schema=schema(paid={"type": "boolean"}))
    fill(store, 100, 20, paid=True)
    assert run(spark, store, path, kind=kind, partition_by="land", batch_records=8).commits == 3
    found = rows(path, kind)
    assert [(row["offset"], row["id"]) for row in found] == [(n, n) for n in range(120)]
    assert [row["paid"] for row in found] == [None] * 100 + [True] * 20
    store.log("orders").delete()
    store.log("orders", schema=schema())
    fill(store, 0, 200)
    with pytest.raises(Conflict, match="is of another log 'orders'"):
        run(spark, store, path, kind=kind, partition_by="land")


def test_it_goes_on_until_it_is_stopped_while_the_schema_grows(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    path, stop = tmp_path / "lake", threading.Event()
    store.log("orders", schema=schema())
    fill(store, 0, 10)
    done: list[TableSummary] = []
    told: list[int] = []

    def work() -> None:
        done.append(
            run(
                spark, store, path, once=False, interval=0.2, upsert=True, stop=stop,
                progress=lambda _stage, at, _total: told.append(at),
            )
        )  # fmt: skip

    running = threading.Thread(target=work)
    running.start()
    try:
        wait_for(told, 10)
        store.log("orders", schema=schema(paid={"type": "boolean"}))
        fill(store, 10, 5, paid=False)
        store.log("orders").append(None, key="k9")
        wait_for(told, 16)
    finally:
        stop.set()
        running.join(PATIENCE_S)
    assert done[0].behind == 0
    found = {row["key"]: (row["id"], row["paid"]) for row in rows(path, "delta")}
    expected = {b"k%d" % n: (n + 10, False) for n in range(5)}
    assert found == expected | {b"k%d" % n: (n, None) for n in range(5, 9)}


def wait_for(told: list[int], at: int) -> None:
    deadline, waiting = monotonic() + PATIENCE_S, threading.Event()
    while at not in told:
        assert monotonic() < deadline, f"the table came to {told}, not to {at}"
        waiting.wait(0.05)


def test_a_partitioned_log_and_a_log_without_a_schema_share_a_table(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    store.log("orders", partitions=2)
    store.log("orders").append_many(
        [b"%d" % n for n in range(20)], keys=[f"{n}" for n in range(20)]
    )
    store.log("clicks").append_many([b"x", b"y"])
    summary = run(spark, store, tmp_path / "lake", logs=["orders", "clicks"])
    assert summary.records == 22
    found = {
        (row["topic"], row["partition"], row["offset"]): row["value"]
        for row in rows(tmp_path / "lake", "delta")
    }
    assert len(found) == 22
    assert sorted(int(value) for key, value in found.items() if key[0] == "orders") == list(
        range(20)
    )


def test_wishes_that_cannot_be_met_are_refused(
    spark: SparkSession, store: Millstream, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    with pytest.raises(NotFound, match="there is no log 'orders' for the table"):
        run(spark, store, path)
    with pytest.raises(InvalidInput, match="a table is one of iceberg, delta, not 'hudi'"):
        run(spark, store, path, kind="hudi")
    with pytest.raises(InvalidInput, match="the name of at least one log"):
        run(spark, store, path, logs=[])
