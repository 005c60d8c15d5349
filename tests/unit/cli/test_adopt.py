"""`millstream adopt`: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.unit.cli.conftest import Cli


@pytest.fixture(params=["wal", "delete"])
def database(cli: Cli, request: pytest.FixtureRequest) -> None:
    with closing(sqlite3.connect("app.db")) as connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
        connection.execute("CREATE TABLE mine (id)")
        connection.execute("INSERT INTO mine VALUES (1)")
        connection.commit()


def test_it_makes_a_store_once_and_says_so(cli: Cli, database: None) -> None:
    assert cli.json("adopt", "app.db") == {"path": "app.db", "adopted": True}
    assert "is a store already" in cli("adopt", "--store", "app.db")
    cli("append", "events", "1", "--store", "app.db")
    assert cli("read", "events", "--values", "--store", "app.db") == "1\n"
    with closing(sqlite3.connect("app.db")) as connection:
        assert connection.execute("SELECT * FROM mine").fetchall() == [(1,)]


def test_commands_that_only_read_refuse_another_database(cli: Cli, database: None) -> None:
    for command in (["stats"], ["read", "events"], ["log", "list"]):
        assert "`millstream adopt " in cli.error(*command, "--store", "app.db", code=2)
    with closing(sqlite3.connect("app.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]


def test_what_is_no_database_is_refused(cli: Cli) -> None:
    (cli.directory / "notes.txt").write_text("no database")
    assert "there is no database" in cli.error("adopt", "b.db", code=2)
    assert "no SQLite file" in cli.error("adopt", "notes.txt", code=2)
    assert "is for files" in cli.error("adopt", f"file://{cli.directory}/bucket")
    assert "not a server" in cli.error("adopt", "http://localhost:1", code=2)
