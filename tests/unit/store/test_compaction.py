"""Promise: the free pages of a file go back to the disk beside readers and writers, and no row changes."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import millstream
from millstream import SqliteOptions
from millstream.doctor import examine
from millstream.engine.sqlite.compact_file import compact_file, plan_compaction
from millstream.engine.sqlite.compaction import LOOK_S, TURN_S
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.header import INCREMENTAL, NONE
from millstream.errors import DiskFull, InvalidInput
from millstream.limits import KiB
from millstream.testing import Probe, SimulatedClock

KEPT_BYTES = 64 * KiB
EAGER = SqliteOptions(compact_share=0.5, free_bytes_kept=KEPT_BYTES)
KEPT = [b"kept %d" % number * 40 for number in range(50)]


def fill(ms: millstream.Millstream) -> None:
    """Leave many free pages between rows that stay."""
    for number in range(5):
        ms.log("gone").append_many([b"%0999d" % number] * 200)
        ms.log("kept").append_many(KEPT[number * 10 : number * 10 + 10])
    ms.log("gone").truncate(before=ms.log("gone").end_offset())
    probe = Probe(ms)
    probe.upkeep()
    ms.fold()
    probe.upkeep()


def filled(path: Path, *, mode: int = INCREMENTAL, table: bool = False) -> Path:
    """Make a closed store with many free pages; with another `auto_vacuum`, as earlier versions did."""
    if mode != INCREMENTAL:
        millstream.open(path).close()
        run(path, f"PRAGMA auto_vacuum = {mode}; VACUUM")
    if table:
        run(path, "CREATE TABLE mine (text); INSERT INTO mine VALUES ('mine')")
    with millstream.open(path) as ms:
        fill(ms)
    return path


def run(path: Path, statements: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return list(connection.execute(statements))
    finally:
        connection.close()


def engine_of(ms: millstream.Millstream) -> SqliteEngine:
    engine = Probe(ms).store.engine
    assert isinstance(engine, SqliteEngine)
    return engine


def check_kept(path: Path) -> None:
    with millstream.open(path) as ms:
        assert [record.value for record in ms.log("kept").read()][: len(KEPT)] == KEPT
    assert examine(path).healthy


def test_a_new_file_shrinks_to_the_rows_that_are_left(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    size = path.stat().st_size
    planned = plan_compaction(path, rewrite=False)
    assert planned.bytes_before == size == path.stat().st_size
    assert planned.free_bytes > size // 2
    heard: list[tuple[str, int, int]] = []
    report = compact_file(path, heard=lambda *words: heard.append(words))
    assert report.bytes_after == path.stat().st_size <= size - planned.free_bytes
    assert report.returned_bytes >= planned.free_bytes
    assert heard[-1][1] == heard[-1][2] > 0
    check_kept(path)
    assert compact_file(path).returned_bytes == 0


def test_the_background_leaves_some_free_pages_and_returns_the_others(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    with millstream.open(path, clock=clock, options=EAGER) as ms:
        Probe(ms).pause_keeper()
        fill(ms)
        engine = engine_of(ms)
        free_bytes = engine.file_use().free_bytes
        assert free_bytes > 4 * KEPT_BYTES
        engine.upkeep(nullcontext())
        assert engine.file_use().free_bytes == free_bytes  # a short command leaves the file alone
        clock.advance(LOOK_S)
        engine.upkeep(nullcontext())
        assert ms.stats()["compaction"] == "resting"
        assert ms.stats()["free_bytes"] <= KEPT_BYTES
        assert ms.stats()["returned_bytes"] >= free_bytes - KEPT_BYTES - 128 * 4096
        assert ms.stats()["file_bytes"] == engine.file_use().file_bytes
    check_kept(path)


def test_the_background_does_not_touch_a_database_of_an_application(tmp_path: Path) -> None:
    path, clock = tmp_path / "app.db", SimulatedClock()
    run(path, "PRAGMA auto_vacuum = 2; PRAGMA journal_mode = WAL; CREATE TABLE mine (text)")
    with millstream.open(path, clock=clock, options=EAGER) as ms:
        Probe(ms).pause_keeper()
        fill(ms)
        free_bytes = engine_of(ms).file_use().free_bytes
        clock.advance(LOOK_S)
        engine_of(ms).upkeep(nullcontext())
        assert engine_of(ms).file_use().free_bytes == free_bytes
    assert compact_file(path).returned_bytes >= free_bytes
    check_kept(path)


def test_of_two_handles_one_compacts(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", SimulatedClock()
    careful = SqliteOptions(compact_share=0.5, free_bytes_kept=0)
    first = millstream.open(path, clock=clock, options=careful)
    second = millstream.open(path, clock=clock, options=careful)
    with first, second:
        Probe(first).pause_keeper()
        Probe(second).pause_keeper()
        fill(first)
        clock.advance(LOOK_S)
        engine_of(second).compaction.step()
        engine_of(first).upkeep(nullcontext())
        fill(first)
        engine_of(second).compaction.step()
        clock.advance(2 * LOOK_S)
        engine_of(first).upkeep(nullcontext())
        assert first.stats()["compaction"] == "elsewhere"


def test_a_share_of_0_turns_the_background_off(tmp_path: Path) -> None:
    clock = SimulatedClock()
    options = SqliteOptions(compact_share=0, free_bytes_kept=0)
    with millstream.open(tmp_path / "s.db", clock=clock, options=options) as ms:
        fill(ms)
        clock.advance(LOOK_S)
        engine_of(ms).upkeep(nullcontext())
        assert (ms.stats()["compaction"], ms.stats()["returned_bytes"]) == ("off", 0)


@pytest.mark.parametrize("share", [-0.1, 0.6, "a", None])
def test_another_share_is_refused(tmp_path: Path, share: Any) -> None:
    with pytest.raises(InvalidInput, match="compact_share"):
        millstream.open(tmp_path / "s.db", options=SqliteOptions(compact_share=share))


def test_handles_read_and_write_between_the_steps_and_take_no_alarm(tmp_path: Path) -> None:
    """The file shrinks by steps and checkpoints of one handle, and grows by the other one."""
    path, clock = filled(tmp_path / "s.db"), SimulatedClock()
    writer = millstream.open(path, clock=clock)
    with writer, millstream.open(path) as other, millstream.open(path, mode="r") as reader:
        for turn in range(30):
            engine_of(other).compaction.step()
            if turn % 3 == 0:
                engine_of(other).checkpoint(nullcontext())
            writer.log("new").append_many([b"%0999d" % turn] * (turn % 5))
            clock.advance(TURN_S)
            writer.log("new").append(b"%d" % turn)
            if turn % 4 == 0:
                engine_of(writer).checkpoint(nullcontext())
            assert [record.value for record in reader.log("kept").read()] == KEPT
        assert writer.stats()["missing"] is None
        assert writer.log("new").end_offset() == sum(turn % 5 for turn in range(30)) + 30
    check_kept(path)


def test_a_step_gives_way_to_a_writer(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    with millstream.open(path) as ms:
        other = apsw.Connection(str(path))
        other.set_busy_timeout(60_000)
        other.execute("BEGIN IMMEDIATE")
        assert engine_of(ms).compaction.step() is None
        other.execute("ROLLBACK")
        assert engine_of(ms).compaction.step()
        other.close()


def test_an_earlier_file_needs_a_rewrite_and_then_shrinks_in_steps(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", mode=NONE, table=True)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=r"made by an earlier version.*--rewrite.*nothing was"):
        compact_file(path)
    assert path.read_bytes() == before
    assert plan_compaction(path, rewrite=False).rewritten
    report = compact_file(path, rewrite=True)
    assert report.rewritten
    assert report.bytes_after < report.bytes_before // 2
    check_kept(path)
    assert run(path, "SELECT text FROM mine") == [("mine",)]
    filled(path)
    assert compact_file(path).returned_bytes > 0
    check_kept(path)


def test_a_rewrite_of_an_applications_database_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    run(path, "PRAGMA journal_mode = WAL; CREATE TABLE mine (text)")
    with millstream.open(path) as ms:
        fill(ms)
    with pytest.raises(InvalidInput, match="a database of an application"):
        compact_file(path)
    assert compact_file(path, rewrite=True).returned_bytes > 0
    assert run(path, "PRAGMA auto_vacuum") == [(NONE,)]
    check_kept(path)


def test_a_rewrite_that_needs_functions_of_the_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    application = apsw.Connection(str(path))
    application.create_scalar_function("regexp", lambda _pattern, _text: True, deterministic=True)
    application.execute("PRAGMA journal_mode = WAL").fetchall()
    application.execute("CREATE TABLE mine (text CHECK (text REGEXP 'm'))")
    application.close()
    with millstream.open(path) as ms:
        fill(ms)
    with pytest.raises(InvalidInput, match=r"REGEXP.*let the application run VACUUM"):
        compact_file(path, rewrite=True)
    check_kept(path)


def test_other_handles_go_on_after_a_rewrite(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", mode=NONE)
    with millstream.open(path) as ms:
        ms.log("new").append(b"before")
        compact_file(path, rewrite=True)
        ms.log("new").append(b"after")
        assert [record.value for record in ms.log("new").read()] == [b"before", b"after"]
    check_kept(path)


def test_a_rewrite_that_does_not_fit_the_disk_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "s.db", mode=NONE)
    before = path.read_bytes()
    small = SimpleNamespace(total=10**9, used=10**9, free=100 * KiB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    with pytest.raises(DiskFull, match="rewriting the file needs"):
        compact_file(path, rewrite=True)
    assert path.read_bytes() == before
