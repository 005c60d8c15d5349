"""Promise: of each key the last record is kept, in order, once, also after a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Item, Millstream
from millstream.errors import AlreadyExists, InvalidInput, NotFound
from millstream.spark.pipelines import compact as module
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.compact import compact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        opened.log("prices").append_many(
            [
                Item("1", key="a", headers={"n": 1}, timestamp=1_000),
                Item("2", key="b", timestamp=2_000),
                Item("no key", timestamp=3_000),
                Item("3", key="a", headers={"n": 3}, timestamp=4_000),
                Item(b"", key="b", timestamp=5_000),
                Item("4", key="", timestamp=6_000),
            ]
        )
        yield opened


def path_of(store: Millstream) -> str:
    return str(store.stats()["path"])


def kept(store: Millstream, log: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in store.log(log).read()]


def test_the_last_record_of_each_key_is_kept(spark: SparkSession, store: Millstream) -> None:
    summary = compact(spark, path_of(store), "prices", to="latest")
    assert (summary.kept, summary.read, summary.end) == (4, 6, 6)
    assert kept(store, "latest") == [(None, b"no key"), (b"a", b"3"), (b"b", b""), (b"", b"4")]
    first = store.log("latest").get(1)
    assert first is not None
    assert (first.headers["n"], first.timestamp) == (3, 4_000)

    compact(spark, path_of(store), "prices", to="strict", keyless=False, empty_deletes=True)
    assert kept(store, "strict") == [(b"a", b"3"), (b"", b"4")]


def test_tombstones_delete_their_keys_and_are_kept_for_their_time(
    spark: SparkSession, store: Millstream
) -> None:
    store.log("prices").append(None, key="a", headers=[("by", "x"), ("by", b"\xff")])
    compact(spark, path_of(store), "prices", to="latest")
    told = (None, b"no key"), (b"b", b""), (b"", b"4"), (b"a", None)
    assert kept(store, "latest") == list(told)
    last = store.log("latest").get(3)
    assert last is not None
    assert last.headers == [("by", "x"), ("by", b"\xff")]
    compact(spark, path_of(store), "prices", to="at-once", tombstones=0, empty_deletes=True)
    assert kept(store, "at-once") == [(None, b"no key"), (b"", b"4")]


@pytest.mark.parametrize("at", ["compact noted", "compact appended"])
def test_a_run_that_ends_anywhere_is_continued(
    spark: SparkSession, store: Millstream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def point(name: str) -> None:
        if name == at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "point", point)
        with pytest.raises(Killed):
            compact(spark, path_of(store), "prices", to="latest")
    store.log("prices").append("5", key="a")
    assert compact(spark, path_of(store), "prices", to="latest").end == 6
    assert kept(store, "latest") == [(None, b"no key"), (b"a", b"3"), (b"b", b""), (b"", b"4")]


def test_parquet_and_archives(spark: SparkSession, store: Millstream, tmp_path: Path) -> None:
    archive(spark, path_of(store), tmp_path / "archive", logs=["prices"], keep=0)
    store.log("prices").append("5", key="b")
    summary = compact(
        spark, path_of(store), "prices", parquet=tmp_path / "out", archive=tmp_path / "archive"
    )
    assert summary.kept == 4
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [bytes(row["value"]) for row in found] == [b"no key", b"3", b"4", b"5"]
    with pytest.raises(AlreadyExists, match="exists already"):
        compact(spark, path_of(store), "prices", parquet=tmp_path / "out")


def test_bad_wishes_are_refused(spark: SparkSession, store: Millstream) -> None:
    path = path_of(store)
    with pytest.raises(NotFound, match="no log 'none'"):
        compact(spark, path, "none", to="x")
    with pytest.raises(InvalidInput, match="either a new log or"):
        compact(spark, path, "prices")
    with pytest.raises(InvalidInput, match="onto itself"):
        compact(spark, path, "prices", to="prices")
    store.log("used").append("x")
    with pytest.raises(AlreadyExists, match="is not a compaction"):
        compact(spark, path, "prices", to="used")
