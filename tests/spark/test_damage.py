"""Promise: what is damaged is left out, counted and named if the user says so; nothing else is hit."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

import millstream
from millstream.cli import app
from millstream.engine.open import open_engine
from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import keys
from millstream.spark.archive.archive import Archive
from millstream.spark.options import read_options
from millstream.spark.pipelines.archive import archive
from millstream.spark.pipelines.compact import compact
from millstream.spark.pipelines.route import route
from millstream.spark.source.layout import schema_of
from millstream.spark.source.losses import Loss
from millstream.spark.source.reader import LogReader
from millstream.spark.source.stream import LogStreamReader
from millstream.testing import Probe
from millstream.testing.probe import corrupt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""Whether long tests run too: `make faults` says so."""

OF_ALL = {keys.DELTA, keys.ID_BLOCK, keys.FOLD}
"""Kinds of rows that concern the whole store."""

BLOCKS, EACH = 5, 40
HIT = range(2 * EACH, 3 * EACH)
"""Offsets of the damaged block."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def filled(path: str) -> None:
    """A store of the logs a, b and c, all alike, and a queue."""
    with millstream.open(path) as store:
        for name in "abc":
            for block in range(BLOCKS):
                numbers = range(block * EACH, (block + 1) * EACH)
                store.log(name).append_many(
                    [b"%s%0500d" % (name.encode(), n) for n in numbers],
                    keys=[f"k{n}" for n in numbers],
                    headers=[{"n": n} for n in numbers],
                )
        store.queue("odd", sources=["a", "b"], filter="n >= 0", start="earliest", router="spark")
        store.fold()


def damaged(path: str, kind: int) -> None:
    """The same, and one block of b is damaged."""
    filled(path)
    with millstream.open(path) as store:
        engine = Probe(store).store.engine
        log_id = int(Probe(store).store.seen(keys.log_name("b")))
        start, (_, stop) = keys.entry(log_id, HIT.start), keys.of_log(keys.ENTRY, log_id)
        with engine.read() as snapshot:
            ((key, value),) = snapshot.scan(start, stop, limit=1)
        if kind == keys.PAYLOAD_BLOCK:
            key = keys.payload_block(blocks.decode_header(value, kind=blocks.METADATA).first_id)
        corrupt(engine, key)


def sound(name: str) -> set[tuple[str, int]]:
    """What can be read of a log."""
    return {(name, n) for n in range(BLOCKS * EACH) if name != "b" or n not in HIT}


SOUND = sound("a") | sound("b") | sound("c")


def seen_by(reader: LogReader | LogStreamReader, tasks: Any) -> set[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for task in tasks:
        for rows in reader.read(task):
            topics, offsets = (rows.column(name).to_pylist() for name in ("topic", "offset"))
            found += zip(topics, offsets, strict=True)
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("kind", [keys.ENTRY, keys.PAYLOAD_BLOCK])
@pytest.mark.parametrize("condition", ["", "n >= 0"])
def test_a_read_leaves_out_what_is_damaged_and_names_it(
    path: str, kind: int, condition: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(path, kind)
    wanted = {"path": path, "subscribePattern": "[abc]", "filter": condition}
    strict = read_options(wanted, streaming=False)
    reader = LogReader(strict, schema_of(strict))
    with pytest.raises(CorruptionError, match=r"log 'b': .* 80 to 119 are damaged.*failOnDataLoss"):
        seen_by(reader, reader.partitions())
    allowing = read_options({**wanted, "failOnDataLoss": "false"}, streaming=False)
    reader = LogReader(allowing, schema_of(allowing))
    with caplog.at_level(logging.WARNING):
        assert seen_by(reader, reader.partitions()) == SOUND
    (told,) = caplog.messages
    assert told.startswith("left out 40 records: log 'b': the records at offsets 80 to 119")


@pytest.mark.parametrize("kind", [keys.NAME, keys.HEAD])
def test_a_log_that_cannot_be_known_any_more_is_left_out_and_named(
    path: str, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(path)
    with millstream.open(path) as store:
        log_id = int(Probe(store).store.seen(keys.log_name("b")))
        key = keys.log_name("b") if kind == keys.NAME else keys.head(log_id)
        corrupt(Probe(store).store.engine, key)
    wanted = {"path": path, "subscribePattern": "[abc]", "failOnDataLoss": "false"}
    options = read_options(wanted, streaming=False)
    reader = LogReader(options, schema_of(options))
    with caplog.at_level(logging.WARNING):
        found = seen_by(reader, reader.partitions())
    assert found == {(name, n) for name in "ac" for n in range(BLOCKS * EACH)}
    (told,) = caplog.messages
    assert told.startswith("left out log 'b': ")


def test_a_stream_leaves_out_what_is_damaged(path: str) -> None:
    damaged(path, keys.ENTRY)
    wanted = {"path": path, "subscribe": "a,b,c", "startingOffsets": "earliest"}
    options = read_options({**wanted, "failOnDataLoss": "false"}, streaming=True)
    reader = LogStreamReader(options, schema_of(options))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert seen_by(reader, reader.partitions(start, end)) == SOUND
    reader.stop()


@pytest.mark.parametrize("kind", [keys.ENTRY, keys.PAYLOAD_BLOCK])
def test_pipelines_go_on_around_it_and_name_what_they_left_out(
    spark: SparkSession, path: str, tmp_path: Path, kind: int
) -> None:
    damaged(path, kind)
    kept = tmp_path / "kept"
    with pytest.raises(CorruptionError, match=r"80 to 119 are damaged.*with allow_gaps") as refused:
        archive(spark, path, kept, pattern="[abc]", round_records=100)
    assert "2 other logs were archived" in str(refused.value)
    held = {name: Archive(kept).segments(name) for name in "abc"}
    assert [held[name][-1].stop for name in "ac"] == [BLOCKS * EACH] * 2  # the sound ones
    assert all(one.stop <= HIT.start for one in held["b"])
    assert [one for one in Archive(kept).folder.names("log=b") if one.endswith(".parquet")] == [
        file.path for one in held["b"] for file in one.files
    ]  # no file without an entry
    summary = archive(spark, path, kept, pattern="[abc]", allow_gaps=True)
    expected = [("b", HIT.start, HIT.stop)]
    assert [(one.log, one.start, one.stop) for one in summary.lost] == expected
    assert "the records at offsets 80 to 119 are damaged" in summary.lost[0].reason
    assert summary.records == BLOCKS * EACH - EACH  # the others were archived before
    assert Archive(kept).segments("b")[-1].lost == summary.lost
    rows = spark.read.parquet(str(kept)).select("topic", "offset").collect()
    assert {(row.topic, row.offset) for row in rows} == SOUND
    assert len(rows) == len(SOUND)

    made = compact(spark, path, "b", to="last", allow_gaps=True)
    assert [(one.log, one.start, one.stop) for one in made.lost] == expected
    assert made.kept == BLOCKS * EACH - EACH

    if kind == keys.ENTRY:
        with pytest.raises(Exception, match="80 to 119 are damaged"):
            route(spark, path)
    routed = route(spark, path, allow_gaps=True)
    has_lost = expected if kind == keys.ENTRY else []  # filters ask for no values
    assert [(one.log, one.start, one.stop) for one in routed.lost] == has_lost
    assert routed.assigned == 2 * BLOCKS * EACH - (EACH if has_lost else 0)


def rows_of_each_kind(path: str) -> dict[int, bytes]:
    """The key of one row of each kind that a store has, in the middle of them."""
    found: dict[int, bytes] = {}
    with millstream.open(path) as store, Probe(store).store.engine.read() as snapshot:
        for kind in range(1, 0x40):
            bounds = bytes((keys.VERSION, kind)), bytes((keys.VERSION, kind + 1))
            some = [key for key, _ in snapshot.scan(*bounds, limit=100)]
            if some:
                found[kind] = some[len(some) // 2]
    return found


def archived(spark: SparkSession, path: str, folder: Path) -> tuple[list[Loss], set[Any]]:
    """What the archive of all logs has left out, and what it has."""
    done = archive(spark, path, folder, pattern="[abc]", allow_gaps=True)
    found = spark.read.parquet(str(folder)).select("topic", "offset").collect()
    kept = {(row.topic, row.offset) for row in found}
    assert len(found) == len(kept)
    return done.lost, kept


@pytest.mark.faults
@pytest.mark.skipif(not LONG, reason="only `make faults` damages everything")
@pytest.mark.timeout(1_800)
def test_damage_of_any_row_is_told_by_the_archive_or_left_out_and_never_silent(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    filled(path)
    whole = {(name, n) for name in "abc" for n in range(BLOCKS * EACH)}
    kinds = rows_of_each_kind(path)
    assert {keys.ENTRY, keys.PAYLOAD_BLOCK, keys.NAME, keys.HEAD} <= kinds.keys()
    told: dict[int, str] = {}
    for kind, key in kinds.items():
        broken = str(tmp_path / f"{kind}.db")
        shutil.copy(path, broken)
        engine = open_engine(broken)
        corrupt(engine, key)
        engine.close()
        try:
            losses, kept = archived(spark, broken, tmp_path / f"{kind}")
        except Exception as error:
            told[kind] = str(error)
            continue
        lost = {(one.log, n) for one in losses for n in range(one.start, one.stop)}
        lost |= {(one.log, n) for one in losses if not len(one) for n in range(BLOCKS * EACH)}
        assert kept == whole - lost, hex(kind)
        assert len({name for name, _ in lost}) <= 1, hex(kind)
    unclear = {n: text for n, text in told.items() if not re.search("damage|checksum", text)}
    assert unclear == {}
    assert told.keys() <= OF_ALL, "of one log, and it affects others"


def test_the_command_ends_with_3_and_names_it(
    spark: SparkSession, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(path, keys.PAYLOAD_BLOCK)
    monkeypatch.setattr("millstream.spark.local.session.local_session", lambda **_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    wanted = ["spark", "run", "archive", str(tmp_path / "kept"), "--store", path, "--pattern", "."]
    failed = CliRunner().invoke(app, wanted)
    assert failed.exit_code == 1
    assert "80 to 119 are damaged" in failed.stderr
    done = CliRunner().invoke(app, [*wanted, "--allow-gaps", "--no-progress"])
    assert done.exit_code == 3, done.stderr
    assert "left out\t40 records that cannot be read" in done.stdout
    assert "log 'b': the records at offsets 80 to 119 are damaged" in done.stderr
    again = CliRunner().invoke(app, [*wanted, "--allow-gaps", "--no-progress", "--json"])
    assert again.exit_code == 0
    assert msgspec.json.decode(again.stdout)["records"] == 0
