"""The doctor runs SQLite's own check, says in words what it found, and can be interrupted meanwhile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millstream.doctor import examine
from millstream.doctor import rows as examined_rows
from tests.unit.store.scrubbed import INTERIORS, LEAVES, Scrubbed, cut_cells

INDEX = "sqlite_autoindex_millstream_record_1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    given = Scrubbed(tmp_path / "s.db")
    given.fold()
    for number in range(60):
        given.ms.log(f"log-{number:03}-{'x' * 40}").append(os.urandom(6_000))
    given.fold()
    given.close()
    return tmp_path / "s.db"


def test_rows_that_their_index_does_not_lead_to_are_named(path: Path) -> None:
    cut_cells(path, INDEX, kinds=LEAVES, keep=0.9, which=-1)
    report = examine(path)
    assert not report.healthy
    told = [one.message for one in report.problems if "missing from index" in one.message]
    assert told
    assert all("cannot be found by its key" in one for one in told)
    assert [one for one in told if "of log " in one or "the name " in one]


@pytest.mark.parametrize("tree", ["millstream_payload", "millstream_record"])
def test_pages_that_no_tree_leads_to_are_told(path: Path, tree: str) -> None:
    cut_cells(path, tree, kinds=INTERIORS, keep=0.5, which=0)
    report = examine(path)
    assert not report.healthy
    told = [one.message for one in report.problems]
    assert [one for one in told if "belongs to no table" in one], told


def test_a_store_that_is_open_and_damaged_is_examined_beside_it(path: Path) -> None:
    cut_cells(path, INDEX, kinds=LEAVES, keep=0.9, which=0)
    given = Scrubbed(path)
    try:
        given.ms.log("log-000").append(b"still written")
        assert not examine(path).healthy
    finally:
        given.close()


def test_a_copy_that_may_not_be_written_is_examined(path: Path) -> None:
    cut_cells(path, INDEX, kinds=LEAVES, keep=0.9, which=-1)
    path.chmod(stat.S_IRUSR)
    before = path.read_bytes()
    report = examine(path)
    assert [one for one in report.problems if "missing from index" in one.message]
    assert path.read_bytes() == before


def test_the_check_tells_that_it_goes_on_and_can_be_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examined_rows, "STEPS_PER_TICK", 50)
    stages: list[str] = []

    def interrupt(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)
        if stages.count("SQLite's own check") == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(path, progress=interrupt)
    assert set(stages[-3:]) == {"SQLite's own check"}
    assert examine(path).healthy
