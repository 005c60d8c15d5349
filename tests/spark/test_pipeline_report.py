"""Promise: a report's numbers are those of the queue's life, and its page needs nothing but itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream import Item
from millstream.errors import NotFound
from millstream.spark.pipelines.report import report
from millstream.testing.clock import SimulatedClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = "<script>alert('no')</script>"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A queue that lived for some minutes: 10 messages, 8 done, one of them at the second attempt."""
    clock = SimulatedClock()
    with millstream.open(tmp_path / "store.db", clock=clock) as opened:
        work = opened.queue("work", sources=["jobs"], backoff=0, max_attempts=2)
        opened.queue(EVIL, sources=["none"])
        opened.log("jobs").append_many(
            [Item("x", headers={"region": "eu" if n < 6 else EVIL}) for n in range(10)]
        )
        for number in range(9):
            clock.advance(30)
            (message,) = work.claim(1)
            clock.advance(2)
            if number == 3:
                work.fail(message, reason=EVIL)
            elif number == 5:
                work.nack(message, delay=1, reason="timed out")
                clock.advance(5)
                (again,) = work.claim(1)
                clock.advance(4)
                work.ack(again)
            else:
                work.ack(message)
    return str(tmp_path / "store.db")


def test_the_numbers_are_right_and_the_page_stands_alone(
    spark: SparkSession, store: str, tmp_path: Path
) -> None:
    into = tmp_path / "report"
    (into / "attempts").mkdir(parents=True)
    (into / "attempts" / "of-an-earlier-report.parquet").write_bytes(b"old")
    (into / "mine.txt").write_text("stays")
    summary = report(spark, store, into, by=["region"])
    (work,) = (one for one in summary.figures.queues if one.queue == "work")
    assert (work.messages, work.attempts, work.done, work.failed) == (9, 10, 8, 1)
    assert (work.in_flight, work.available, work.tries) == (0, 1, {1: 8, 2: 1})
    assert work.wait.count == 9
    assert work.wait.p50 == pytest.approx(30 * 5 + 2 * 4, abs=1.1)
    assert (work.work.p50, work.work.most) == (pytest.approx(2), pytest.approx(4))
    assert {one.reason: (one.attempts, one.failed) for one in work.reasons} == {
        EVIL: (1, 1),
        "timed out": (1, 0),
    }
    assert sum(minute.done for minute in work.minutes) == 8
    assert sum(minute.arrived for minute in work.minutes) == 9
    assert sum(minute.again for minute in work.minutes) == 1
    assert {one.value: (one.messages, one.failed) for one in work.slices} == {
        "eu": (6, 1),
        EVIL: (3, 0),
    }
    assert spark.read.parquet(str(into / "attempts")).count() == 10
    minutes = spark.read.parquet(str(into / "minutes")).agg({"claimed": "sum"}).first()
    assert minutes is not None
    assert minutes[0] == 10
    assert {one.name for one in into.iterdir()} == {
        "attempts", "messages", "minutes", "spreads", "reasons", "report.html", "mine.txt",
    }  # fmt: skip
    check_page(Path(summary.page).read_text(encoding="utf-8"))


def check_page(page: str) -> None:
    """Nothing from elsewhere, no script but its own, and every chart has numbers."""
    assert EVIL not in page
    assert "&lt;script&gt;alert(" in page
    shown, _, held = page.partition('<script type="application/json"')
    assert "<script" not in shown
    assert held.count("<script") == 1
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|url\(|@import|https?://""", shown)
    assert "prefers-color-scheme: dark" in page
    charts = json.loads(held.partition(">")[2].partition("</script>")[0])["charts"]
    assert len(charts) == 3
    for one in charts:
        assert len(one["series"]) == len(one["columns"])
        assert all(len(column) == len(one["times"]) for column in one["columns"])


def test_queues_that_nobody_worked_on(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    with millstream.open(path) as opened:
        with pytest.raises(NotFound, match="no queue in this store"):
            report(spark, path, tmp_path / "report")
        opened.queue("idle", lease=5)
        opened.queue("idle").put_many(["a", "b"])
        with pytest.raises(NotFound, match="no queue 'none'"):
            report(spark, path, tmp_path / "report", queues=["none"])
        summary = report(spark, path, tmp_path / "report", by=["region"])
        assert (summary.figures.messages, summary.figures.queues[0].available) == (0, 2)
        assert "idle" in Path(summary.page).read_text(encoding="utf-8")
