"""Promise: pipelines work on a server's address as they do on a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.redrive import redrive
from millstream.spark.pipelines.replay import replay
from millstream.spark.pipelines.route import route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    settings = Settings(port=0, stop_s=1.0)
    with running(tmp_path / "served.db", settings, durability="relaxed") as found:
        yield found


@pytest.fixture
def address(server: Serving) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def store(address: str) -> Iterator[Millstream]:
    with millstream.open(address) as opened:
        yield opened


def test_archive_route_replay_and_redrive(
    spark: SparkSession, address: str, store: Millstream, tmp_path: Path
) -> None:
    store.log("orders").append_many(
        [b"%d" % n for n in range(100)], headers=[{"n": n} for n in range(100)]
    )
    archive(spark, address, tmp_path / "kept", logs=["orders"], keep=0)
    assert store.log("orders").start_offset() == 100
    store.log("orders").append_many([b"100", b"101"], headers=[{"n": 100}, {"n": 101}])

    options = {"server": address, "archive": str(tmp_path / "kept"), "subscribe": "orders"}
    found = spark.read.format("millstream").options(**options).load()
    assert sorted(row[0] for row in found.select("offset").collect()) == list(range(102))

    queue = store.queue(
        "high", sources=["orders"], filter="n >= 98", start="earliest", router="spark",
        max_attempts=1,
    )  # fmt: skip
    summary = route(spark, address, backfill=str(tmp_path / "kept"))
    assert (summary.backfilled, summary.assigned) == (2, 2)
    claimed = queue.claim(10)
    assert sorted(int(message.value) for message in claimed) == [98, 99, 100, 101]
    queue.fail(claimed, reason="no")
    assert redrive(spark, address, "high", where="text > '98' and reason = 'no'").redriven == 1

    rows = tmp_path / "kept" / "log=orders"
    for _ in range(2):
        replay(spark, address, rows, "copy", checkpoint=tmp_path / "state", order_by="offset")
    assert [int(record.value) for record in store.log("copy").read()] == list(range(100))
