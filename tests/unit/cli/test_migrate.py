"""`millstream migrate`: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import millstream
from millstream import SqliteOptions
from millstream.engine.sqlite.pages import checksum_layer
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.skipif(
    checksum_layer() is None, reason="apsw came without the checksum layer"
)


@pytest.fixture
def store(cli: Cli) -> None:
    with millstream.open("a.db", options=SqliteOptions(page_checksums=True)) as ms:
        ms.log("x").append(b"1")


def test_it_converts_once_and_says_so(cli: Cli, store: None) -> None:
    found = cli.json("migrate", "a.db")
    assert (found["converted"], found["had_page_checksums"]) == (True, True)
    assert found["rows"] > 0
    assert "nothing to do" in cli("migrate", "--store", "a.db")
    assert cli("read", "x", "--values", "--store", "a.db") == "1\n"


def test_a_dry_run_changes_nothing_and_a_run_keeps_the_old_file(cli: Cli, store: None) -> None:
    old = Path("a.db").read_bytes()
    planned = cli.json("migrate", "a.db", "--dry-run")
    assert (planned["needed"], planned["converted"]) == (True, False)
    assert Path("a.db").read_bytes() == old
    assert "after a copy to a.db.before-migration" in cli("migrate", "a.db", "--dry-run")
    done = cli.json("migrate", "a.db")
    copy = Path(done["copy"])
    assert copy.name == "a.db.before-migration"
    assert copy.stat().st_mode == Path("a.db").stat().st_mode
    with millstream.open(copy, mode="r") as ms:
        assert ms.stats()["page_checksums"]
        assert [record.value for record in ms.log("x").read()] == [b"1"]
    assert not cli.json("migrate", "a.db", "--dry-run")["needed"]


def test_a_copy_of_an_earlier_run_is_not_overwritten(cli: Cli, store: None) -> None:
    Path("a.db.before-migration").write_text("precious")
    old = Path("a.db").read_bytes()
    assert "exists: move it away" in cli.error("migrate", "a.db", code=2)
    assert Path("a.db.before-migration").read_text() == "precious"
    assert Path("a.db").read_bytes()[100:] == old[100:]
    assert cli.json("migrate", "a.db", "--no-copy")["copy"] is None
    assert cli("read", "x", "--values", "--store", "a.db") == "1\n"


def test_a_damaged_store_is_refused_and_left_alone(cli: Cli, store: None) -> None:
    file = apsw.Connection("a.db", vfs="unix")
    file.execute("UPDATE millstream_delta SET crc = crc + 1")
    file.close()
    assert "checksum does not fit" in cli.error("migrate", "a.db")


def test_what_is_no_store_in_a_file_is_refused(cli: Cli) -> None:
    assert "there is no store" in cli.error("migrate", "b.db", code=2)
    assert "is for files" in cli.error("migrate", f"file://{cli.directory}/bucket")
    assert "not a server" in cli.error("migrate", "http://localhost:1", code=2)
