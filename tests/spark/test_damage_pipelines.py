"""Promise: damage of any row stops no pipeline on other logs and queues, and is never silent.

A pipeline on what is damaged does all of it, or ends with an error that speaks of damage; if gaps are
allowed, it names what it left out, and everything else is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

import millstream
from millstream.cli import app
from millstream.engine.open import open_engine
from millstream.format import keys
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.compact import compact
from millstream.spark.pipelines.redrive import redrive
from millstream.spark.pipelines.replay import replay
from millstream.spark.pipelines.report import report
from millstream.spark.pipelines.route import route
from millstream.spark.source.losses import count
from millstream.testing import Probe
from millstream.testing.probe import corrupt
from tests.spark.test_damage import BLOCKS, EACH, OF_ALL, damaged, filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""Whether long tests run too: `make faults` says so."""

ALL = BLOCKS * EACH
CLAIMED, FAILED = 60, 20

KINDS = [
    *(keys.ENTRY, keys.PAYLOAD_BLOCK, keys.NAME, keys.HEAD, keys.METADATA, keys.CURSOR),
    *(keys.QUEUE, keys.BUCKET, keys.AGING, keys.STORE),
]
"""Kinds of rows of which one is of log b or of the queue work, which takes from it."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def prepared(path: str) -> None:
    """Logs a, b and c; queues that Spark routes: odd (a, b) and only (c); and work (b), other (c)."""
    filled(path)
    with millstream.open(path) as store:
        store.queue("only", sources=["c"], filter="n >= 0", start="earliest", router="spark")
        for name, log in (("work", "b"), ("other", "c")):
            queue = store.queue(name, sources=[log], start="earliest", max_attempts=1)
            claimed = queue.claim(CLAIMED)
            queue.fail(claimed[:FAILED], reason="no")
            queue.ack(claimed[FAILED:])
        for name in "abc":
            log = store.log(name)
            log.cursor("c", start="earliest").ack_up_to(10)
            log.metadata.set("x", 1)
        store.log("later").append(b"x")  # else the newest commit would be about one of them
        store.fold()


def row_of(path: str, kind: int) -> bytes:
    """The key of the first row of a kind that belongs to log b or to the queue work."""
    with millstream.open(path) as store:
        found = Probe(store).store
        log_id = int(found.seen(keys.log_name("b")))
        with found.engine.read() as snapshot:
            some = [key for key, _ in snapshot.scan(*_bounds(kind), limit=100)]
            buckets = [key for key, _ in snapshot.scan(*_bounds(keys.BUCKET), limit=100)]
    owners = {log_id.to_bytes(8), min(key[2:10] for key in buckets)}  # work is the older queue
    if kind == keys.PAYLOAD_BLOCK:
        return some[BLOCKS]
    return next(key for key in some if key[2:] in (b"", b"b", b"work") or key[2:10] in owners)


def _bounds(kind: int) -> tuple[bytes, bytes]:
    return bytes((keys.VERSION, kind)), bytes((keys.VERSION, kind + 1))


Outcome = Any
"""What a pipeline returned, or the text of its error."""


def told(run: Callable[[], Outcome]) -> Outcome:
    """What a pipeline returns; of an error the text, which must speak of damage."""
    try:
        return run()
    except Exception as error:
        text = str(error)
    assert re.search("damage|checksum", text), text
    return text


class Damaged:
    """Stores in which one row is damaged, each for one run of a pipeline."""

    def __init__(self, spark: SparkSession, source: str, key: bytes, folder: Path) -> None:
        self._spark, self._source, self._key, self._folder = spark, source, key, folder
        self._number = 0

    def run(self, pipeline: Callable[..., Any], *given: Any, **options: Any) -> Outcome:
        """Run a pipeline on a store that no other run has touched."""
        self._number += 1
        broken = str(self._folder / f"{self._number}.db")
        shutil.copy(self._source, broken)
        engine = open_engine(broken)
        corrupt(engine, self._key)
        engine.close()
        return told(lambda: pipeline(self._spark, broken, *given, **options))

    def folder(self) -> Path:
        """A directory that is not there yet."""
        self._number += 1
        return self._folder / f"folder {self._number}"


def check_logs(broken: Damaged) -> None:
    """Compaction, and replay to a new log and to the damaged one."""
    whole = broken.run(compact, "a", to="last")
    assert whole.kept == ALL
    strict = broken.run(compact, "b", to="last")
    assert isinstance(strict, str) or strict.kept == ALL
    allowed = broken.run(compact, "b", to="last", allow_gaps=True)
    if not isinstance(allowed, str):
        assert allowed.kept == ALL - count(allowed.lost)
        assert isinstance(strict, str) == bool(allowed.lost)
        assert all(one.log == "b" for one in allowed.lost)
    rows = broken.folder()
    rows.write_text("\n".join(json.dumps({"value": f"{n}"}) for n in range(20)))
    wish: dict[str, Any] = {"format": "json"}
    fresh = broken.run(replay, rows, "fresh", checkpoint=broken.folder(), **wish)
    assert fresh.records == 20
    more = broken.run(replay, rows, "b", checkpoint=broken.folder(), **wish)
    assert isinstance(more, str) or more.records == 20


def check_queues(broken: Damaged) -> None:
    """Routing, reports and redriving."""
    strict = broken.run(route)
    assert isinstance(strict, str) or strict.assigned == 3 * ALL
    routed = broken.run(route, allow_gaps=True)
    assigned = {one.queue: one.assigned for one in routed.queues}
    assert assigned["only"] == ALL
    if "odd" in assigned:
        assert assigned["odd"] == 2 * ALL - count(routed.lost)
    else:
        assert any("queue 'odd'" in one.reason for one in routed.lost)
    assert isinstance(strict, str) == bool(routed.lost)

    strict = broken.run(report, broken.folder(), by=["n"])
    made = broken.run(report, broken.folder(), by=["n"], allow_gaps=True)
    figures = {one.queue: one for one in made.figures.queues}
    assert figures["other"].messages == CLAIMED
    if "work" in figures:
        assert figures["work"].messages == CLAIMED
    else:
        assert any("queue 'work'" in one.reason for one in made.lost)
    assert isinstance(strict, str) == bool(made.lost)

    assert broken.run(redrive, "other", where="reason = 'no'").redriven == FAILED
    again = broken.run(redrive, "work", where="reason = 'no'")
    assert isinstance(again, str) or again.redriven == FAILED


def check_store(broken: Damaged) -> None:
    """A pipeline that needs the row of the whole store tells its damage; others do all their work."""
    allowed: dict[str, Any] = {"allow_gaps": True}
    assert isinstance(broken.run(compact, "a", to="last", **allowed), str)
    routed = broken.run(route, **allowed)
    assert isinstance(routed, str) or routed.assigned == 3 * ALL
    made = broken.run(report, broken.folder(), **allowed)
    assert isinstance(made, str) or {one.messages for one in made.figures.queues} >= {CLAIMED}
    again = broken.run(redrive, "other", where="reason = 'no'")
    assert isinstance(again, str) or again.redriven == FAILED


@pytest.mark.faults
@pytest.mark.skipif(not LONG, reason="only `make faults` damages everything")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", KINDS, ids=hex)
def test_damage_of_any_row_is_told_or_left_out_by_every_pipeline(
    spark: SparkSession, path: str, tmp_path: Path, kind: int
) -> None:
    prepared(path)
    broken = Damaged(spark, path, row_of(path, kind), tmp_path)
    if kind == keys.STORE:
        check_store(broken)
        return
    check_logs(broken)
    check_queues(broken)


def test_every_kind_of_row_that_a_store_has_is_damaged_by_some_test(path: str) -> None:
    prepared(path)
    with millstream.open(path) as store, Probe(store).store.engine.read() as snapshot:
        there = {kind for kind in range(1, 0x40) if [*snapshot.scan(*_bounds(kind), limit=1)]}
    assert there - OF_ALL == set(KINDS)


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a pipeline as a command, on the shared session."""
    monkeypatch.setattr("millstream.spark.local.session.local_session", lambda **_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def start(*words: str, code: int) -> Any:
        result = CliRunner().invoke(app, ["spark", "run", *words, "--no-progress"])
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        return result

    return start


def test_commands_end_with_3_and_name_what_they_left_out(
    run: Callable[..., Any], path: str, tmp_path: Path
) -> None:
    damaged(path, keys.ENTRY)
    hit = "log 'b': the records at offsets 80 to 119 are damaged"
    allowed = {
        ("compact", "b", "--to", "last"): "--allow-gaps",
        ("route", "--queue", "odd"): "--allow-gaps",
    }
    for words, option in allowed.items():
        assert hit in run(*words, "--store", path, code=1).stderr
        done = run(*words, "--store", path, option, code=3)
        assert "left out\t40 records that cannot be read" in done.stdout
        assert hit in done.stderr


def test_a_report_names_headers_and_queues_that_are_damaged(
    run: Callable[..., Any], path: str, tmp_path: Path
) -> None:
    filled(path)
    with millstream.open(path) as store:
        for name, log in (("sound", "a"), ("hurt", "b"), ("whole", "c")):
            queue = store.queue(name, sources=[log], start="earliest", max_attempts=1)
            queue.fail(queue.claim(10), reason="no")
        store.log("later").append(b"x")
        store.fold()
        found = Probe(store).store
        log_id = int(found.seen(keys.log_name("b")))
        corrupt(found.engine, keys.entry(log_id, EACH - 1))
        corrupt(found.engine, keys.queue("whole"))
    words = ["report", str(tmp_path / "page"), "--store", path, "--by", "n"]
    assert "queue 'whole': the row" in run(*words, code=1).stderr
    named = run(*words, "--queue", "sound", "--queue", "hurt", code=1).stderr
    assert "log 'b': the records at offsets 0 to 39 are damaged" in named
    assert "with --allow-gaps the report is made" in named
    run(*words, "--queue", "sound", code=0)

    done = run(*words, "--allow-gaps", "--json", code=3)
    made = msgspec.json.decode(done.stdout)
    messages = {one["queue"]: one.get("messages", 0) for one in made["figures"]["queues"]}
    assert messages == {"hurt": 10, "odd": 0, "sound": 10}
    assert [one["start"] for one in made["lost"]] == [0, 0]
    assert "queue 'whole'" in made["lost"][0]["reason"]
    assert (tmp_path / "page" / "report.html").exists()


def test_what_an_archive_lacks_is_told_by_a_compaction_and_by_a_backfill(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    damaged(path, keys.ENTRY)
    kept = tmp_path / "kept"
    archive(spark, path, kept, logs=["b"], allow_gaps=True, keep=0)
    with millstream.open(path) as store:
        assert store.log("b").start_offset() == ALL  # what is left of it is in the archive
        store.queue("new", sources=["b"], start="earliest", router="spark")
    expected = [("b", 2 * EACH, 3 * EACH)]
    with pytest.raises(Exception, match="80 to 119 of log 'b' could not be archived"):
        compact(spark, path, "b", to="last", archive=kept)
    made = compact(spark, path, "b", to="last", archive=kept, allow_gaps=True)
    assert [(one.log, one.start, one.stop) for one in made.lost] == expected
    assert made.kept == ALL - EACH

    with pytest.raises(Exception, match="80 to 119 of log 'b' could not be archived"):
        route(spark, path, queues=["new"], backfill=str(kept))
    routed = route(spark, path, queues=["new"], backfill=str(kept), allow_gaps=True)
    assert routed.backfilled == ALL - EACH
    assert [(one.log, one.start, one.stop) for one in routed.lost] == expected
