"""A retention for logs that are made from now on; each log has its own, which can be changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.main import get_command

import millstream
from millstream import Limits
from millstream.cli import app
from millstream.cli.config import read_file
from millstream.server.serving import running
from millstream.server.settings import Settings

DAY_MS = 24 * 3600 * 1000
WEEK = Limits(log_age_ms=7 * DAY_MS)


def test_new_logs_get_it_and_others_stay(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("old").append(b"x")
    with millstream.open(tmp_path / "a.db", limits=WEEK) as ms:
        ms.log("old").append(b"x")
        ms.log("new").append(b"x")
        ms.log("own").retain(count=5)
        ms.log("parts", partitions=2).create()
        ms.log("new").fork("fork")
        ms.create_queue("jobs").put(b"x")
        ms.room("hall").send("chat", "x")
        assert ms.log("old").retention().age_ms is None
        assert ms.log("new").retention().age_ms == 7 * DAY_MS
        assert ms.log("own").retention().age_ms is None
        assert ms.log("parts").retention().age_ms == 7 * DAY_MS
        assert ms.log("queue:jobs").retention().age_ms is None
        assert ms.log("room:hall").retention().age_ms is None
        ms.log("parts", partitions=2).add_partitions(3)
        assert ms.log("parts").retention().age_ms == 7 * DAY_MS
        ms.log("new").retain()
    with millstream.open(tmp_path / "a.db", limits=WEEK) as ms:
        ms.log("new").append(b"y")
        assert ms.log("new").retention().age_ms is None
        assert ms.log("parts").retention().age_ms == 7 * DAY_MS


def test_a_synced_copy_does_not_get_it(tmp_path: Path) -> None:
    with (
        millstream.open(tmp_path / "a.db") as ms,
        millstream.open(tmp_path / "b.db", limits=WEEK) as there,
    ):
        ms.log("x").append(b"1")
        ms.sync(there)
        assert there.log("x").retention().age_ms is None


def test_a_server_gives_it_to_logs_that_its_clients_make(tmp_path: Path) -> None:
    settings = Settings(port=0, stop_s=1.0, logs_retention_s=7 * 24 * 3600.0)
    with running(tmp_path / "a.db", settings) as server, millstream.open(server.url) as ms:
        ms.log("x").append(b"1")
        assert ms.log("x").retention().age_ms == 7 * DAY_MS


def test_the_file_of_settings_has_a_section_for_it(tmp_path: Path) -> None:
    place = tmp_path / "millstream.toml"
    place.write_text('[logs]\nretention = "7d"\n')
    assert "7d" in read_file(get_command(app), place)["serve"].values()
    place.write_text('[logs]\nretain = "7d"\n')
    with pytest.raises(typer.BadParameter, match="has no option 'retain'"):
        read_file(get_command(app), place)
    place.write_text('logs = "7d"\n')
    with pytest.raises(typer.BadParameter, match="logs must be a section"):
        read_file(get_command(app), place)
