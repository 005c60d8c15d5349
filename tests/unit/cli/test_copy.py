"""`millstream copy`: what it prints, and what it refuses."""

from __future__ import annotations

import pytest

import millstream
from tests.unit.cli.conftest import Cli


@pytest.fixture
def store(cli: Cli) -> None:
    with millstream.open("a.db") as ms:
        ms.log("x").append(b"1")
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (a)")


def test_it_says_what_it_copied_and_replaces_only_on_request(cli: Cli, store: None) -> None:
    found = cli.json("copy", "a.db", "b.db")
    assert (found["tables"], found["left_behind"]) == (["mine"], [])
    assert found["rows"] == found["written"] > 0
    assert "b.db is there already" in cli.error("copy", "a.db", "b.db", code=2)
    assert "the application's tables: mine" in cli("copy", "a.db", "b.db", "--replace")
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n"


@pytest.mark.requires("s3")
def test_a_bucket_without_the_tables_is_made_only_on_request(cli: Cli, store: None) -> None:
    bucket = f"file://{cli.directory}/bucket"
    assert "mine" in cli.error("copy", "a.db", bucket)
    out = cli("copy", "a.db", bucket, "--without-tables")
    assert "WITHOUT the application's tables, which are not in the copy: mine" in out
    assert cli.json("copy", "a.db", bucket, "--without-tables")["left_behind"] == ["mine"]


def test_a_server_is_refused(cli: Cli, store: None) -> None:
    assert "is a server" in cli.error("copy", "http://localhost:1", "b.db")
