"""Promise: exactly the failed messages that a SQL condition chooses become available again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Item, Millstream
from millstream.engine.open import open_engine
from millstream.errors import InvalidInput, NotFound
from millstream.format import keys
from millstream.spark.pipelines.redrive import redrive
from millstream.testing import Probe
from millstream.testing.probe import corrupt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        work = opened.queue("work", sources=["jobs"], max_attempts=1)
        opened.log("jobs").append_many(
            [Item({"n": n}, headers={"region": "eu" if n % 2 else "us"}) for n in range(10)]
        )
        for number, message in enumerate(work.claim(9)):
            work.fail(message, reason="timed out" if number < 6 else "bad input")
        yield opened


def test_a_condition_chooses(spark: SparkSession, store: Millstream) -> None:
    path, work = str(store.stats()["path"]), store.queue("work")
    dry = redrive(spark, path, "work", where="reason = 'timed out'", dry_run=True)
    assert (dry.failed, dry.chosen, dry.redriven) == (9, 6, 0)
    where = (
        "reason like 'timed%' and headers['region'].s = 'eu' and get_json_object(text, '$.n') > 1"
    )
    summary = redrive(spark, path, "work", where=where)
    assert (summary.chosen, summary.redriven) == (2, 2)
    assert sorted(m.json()["n"] for m in work.peek(100, state="failed")) == [0, 1, 2, 4, 6, 7, 8]
    assert redrive(spark, path, "work", where=where).chosen == 0
    assert redrive(spark, path, "work", limit=3).redriven == 3
    assert sorted(m.json()["n"] for m in work.claim(100)) == [0, 1, 2, 3, 5, 9]


def test_what_is_damaged_is_not_taken_for_empty(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "broken.db")
    with millstream.open(path) as store:
        for first in (0, 3, 6):
            values = [b"" if n == 0 else b"%d" % n for n in range(first, first + 3)]
            store.log("jobs").append_many([Item(one, headers={"n": 1}) for one in values])
        work = store.queue("work", sources=["jobs"], start="earliest")
        work.fail(work.claim(9), reason="no")
        store.log("later").append(b"x")
        store.fold()
        with Probe(store).store.engine.read() as snapshot:
            payloads = snapshot.scan(*keys.range_of(keys.prefix(keys.PAYLOAD_BLOCK)), limit=9)
            entries = snapshot.scan(*keys.range_of(keys.prefix(keys.ENTRY)), limit=9)
    engine = open_engine(path)
    corrupt(engine, payloads[1][0])
    corrupt(engine, entries[2][0])
    engine.close()

    def chosen(where: str) -> int:
        return redrive(spark, path, "work", where=where, dry_run=True).chosen

    assert chosen("text = ''") == 1
    assert chosen("length(value) = 0") == 1
    assert chosen("headers['n'].i = 1 and timestamp is not null") == 6
    assert chosen("size(headers) = 0") == 0
    assert chosen("damage = 'value' and reason like 'damaged: %; before that: no'") == 3
    assert chosen("damage = 'record'") == 3
    assert chosen("true") == 9


def test_bad_wishes_are_refused(spark: SparkSession, store: Millstream) -> None:
    path = str(store.stats()["path"])
    with pytest.raises(InvalidInput, match=r"cannot be asked.*nope"):
        redrive(spark, path, "work", where="nope = 1")
    with pytest.raises(InvalidInput, match="cannot be asked"):
        redrive(spark, path, "work", where="select from")
    with pytest.raises(NotFound, match="no queue 'none'"):
        redrive(spark, path, "none")
    info = store.queue("work").info()
    assert info is not None
    assert info.failed == 9
