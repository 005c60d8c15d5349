"""`millstream migrate`: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

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


def test_a_damaged_store_is_refused_and_left_alone(cli: Cli, store: None) -> None:
    file = apsw.Connection("a.db", vfs="unix")
    file.execute("UPDATE millstream_delta SET crc = crc + 1")
    file.close()
    assert "checksum does not fit" in cli.error("migrate", "a.db")


def test_what_is_no_store_in_a_file_is_refused(cli: Cli) -> None:
    assert "there is no store" in cli.error("migrate", "b.db", code=2)
    assert "is for files" in cli.error("migrate", f"file://{cli.directory}/bucket")
    assert "not a server" in cli.error("migrate", "http://localhost:1", code=2)
