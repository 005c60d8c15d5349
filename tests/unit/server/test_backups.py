"""A server makes backups of its store by itself, and warns if they are late or fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

import millstream
from millstream.backup.place import BackupPlace
from millstream.backup.restore import restore
from millstream.embedded.session import open_file
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import CorruptionError, InvalidInput
from millstream.server import backups as server_backups
from millstream.server.backups import ServerBackups
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock

WAIT_S = 60


@contextmanager
def backups_of(path: Path, clock: SimulatedClock, **settings: Any) -> Iterator[ServerBackups]:
    store = open_file(path, clock=clock)
    backups = ServerBackups(store, Settings(**settings))
    try:
        assert backups.tried.wait(WAIT_S)
        yield backups
    finally:
        backups.close()
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("x").append(b"1")
    return tmp_path / "a.db"


def test_a_backup_is_made_at_once_and_then_when_it_is_due(path: Path, tmp_path: Path) -> None:
    clock, place = SimulatedClock(10**12), tmp_path / "backup"
    settings = {"backup_place": str(place), "backup_every_s": 600.0, "backup_keep": "1"}
    with backups_of(path, clock, **settings) as backups:
        assert (backups.check().status, backups.failures) == ("healthy", 0)
        clock.advance(1_199)
        assert backups.check().status == "healthy"
        clock.advance(2)
        assert backups.check().status == "warning"
    assert len(BackupPlace(place).points()) == 1
    with backups_of(path, clock, **settings):  # the last point is old: a new one is made at once
        pass
    (point,) = BackupPlace(place).points()
    assert point.taken_ms == clock.wall_ms()


def test_a_failure_is_told(path: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with backups_of(path, SimulatedClock(10**12), backup_place=str(tmp_path / "full")) as backups:
        check = backups.check()
        assert check.status == "warning"
        assert "no backup yet; the last try failed" in check.detail
        assert backups.failures >= 1


def test_a_followed_store_loses_no_commit(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    settings = Settings(port=0, stop_s=1.0, backup_place=str(place), backup_follow=True)
    with running(path, settings) as server:
        assert server.core is not None
        assert server.core.backups is not None
        assert server.core.backups.tried.wait(WAIT_S)
        with millstream.open(server.url) as ms:
            ms.log("x").append(b"2")
        with urlopen(f"{server.url}/health") as answer:
            checks = {
                check["name"]: check for check in msgspec.json.decode(answer.read())["checks"]
            }
        assert checks["backup"]["status"] == "healthy"
        with urlopen(f"{server.url}/metrics") as answer:
            text = answer.read()
        assert b"millstream_backup_age_seconds" in text
        assert b"millstream_backup_failures_total 0.0" in text
        with millstream.open(server.url) as ms:
            facts = ms.stats()
        assert 0 <= facts["backup_age_s"] < WAIT_S
        assert facts["backup_failures"] == 0
    restore(place, tmp_path / "b.db")
    with millstream.open(tmp_path / "b.db") as ms:
        assert [record.value for record in ms.log("x").read()] == [b"1", b"2"]


def test_a_damaged_store_gets_no_new_point_and_its_commits_are_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise CorruptionError("a row is damaged", what="row", where="")

    clock, place = SimulatedClock(10**12), tmp_path / "backup"
    monkeypatch.setattr(server_backups, "INTERVAL_S", 0.01)
    with backups_of(path, clock, backup_place=str(place), backup_follow=True) as backups:
        monkeypatch.setattr(SqliteEngine, "verify", refuse)
        clock.advance(25 * 3600)  # a new point is due
        while not backups.failures:
            backups.tried.clear()
            assert backups.tried.wait(WAIT_S)
        check = backups.check()
    assert check.status == "warning"
    assert "the last backup is 0 s old; the last try failed" in check.detail
    assert "is damaged and gets no new point" in check.detail


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidInput, match="backup_every_s"):
        Settings(backup_every_s=0.5).check()
    with pytest.raises(InvalidInput, match="keep is a number"):
        Settings(backup_keep="often").check()
