"""`millstream sql`: statements over the application's tables and the relations of a store."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from tests.unit.cli.test_terminal import on_terminal

Program = Callable[..., subprocess.Popen[bytes]]
UNBUFFERED = {**os.environ, "PYTHONUNBUFFERED": "1"}


@pytest.fixture(autouse=True)
def _app(cli: Any) -> None:
    with millstream.open("app.db") as ms:
        ms.create_queue("emails").put_many([{"n": n} for n in range(3)])
        ms.log("orders").append_many([{"id": n, "customer": n % 2} for n in range(20)])
        ms.log("orders").append(b"\x00\xff", key="k")
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE customers (id INTEGER PRIMARY KEY, name)")
            tx.sql("INSERT INTO customers VALUES (0, 'Ada'), (1, 'Zoë 🦊')")


def rows(shown: str) -> list[list[str]]:
    return [line.split("\t") for line in shown.splitlines()]


def test_a_statement_prints_its_rows(cli: Any) -> None:
    shown = cli("sql", "app.db", "SELECT name, ready FROM millstream_queues")
    assert rows(shown) == [["name", "ready"], ["emails", "3"]]


@pytest.mark.parametrize(
    "arguments", [["-s", "app.db", "SELECT 7 AS n"], ["--store", "app.db", "SELECT 7 AS n"]]
)
def test_the_store_may_be_named_by_its_option(cli: Any, arguments: list[str]) -> None:
    assert cli("sql", *arguments) == "n\n7\n"


def test_statements_come_from_standard_input(cli: Any) -> None:
    statements = "SELECT 1 AS a;\nSELECT 2 AS b, 'x' AS c;"
    assert cli("sql", "app.db", input=statements) == "a\n1\nb\tc\n2\tx\n"
    assert cli("sql", "app.db", input="") == ""
    assert "not UTF-8" in cli.error("sql", "app.db", input=b"SELECT '\xff'")


def test_the_applications_tables_join_with_the_relations(cli: Any) -> None:
    shown = cli(
        "sql",
        "app.db",
        "SELECT name, count(*) AS n FROM customers JOIN millstream_records "
        "ON value ->> 'customer' = customers.id WHERE log = 'orders' AND offset < 20 "
        "GROUP BY name",
    )
    assert rows(shown) == [["name", "n"], ["Ada", "10"], ["Zoë 🦊", "10"]]


def test_json_is_an_object_per_row(cli: Any) -> None:
    shown = cli(
        "sql",
        "app.db",
        "--json",
        "SELECT offset, key, value, headers, offset FROM millstream_records "
        "WHERE log = 'orders' ORDER BY offset DESC LIMIT 2",
    )
    first, second = [msgspec.json.decode(line) for line in shown.splitlines()]
    assert first == {
        "offset": 20,
        "key": "k",
        "value": {"base64": "AP8="},
        "headers": None,
        "offset:1": 20,
    }
    assert msgspec.json.decode(second["value"]) == {"id": 19, "customer": 1}


def test_nothing_and_bytes_are_written_as_sql_writes_them(cli: Any) -> None:
    shown = cli("sql", "app.db", "SELECT NULL, x'00ff', 'a\tb\nc', 1.5, ''")
    assert shown.splitlines()[1] == "NULL\tx'00ff'\ta\\tb\\nc\t1.5\t"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELEC 1 FROM x", 'near "SELEC": syntax error'),
        ("SELECT * FROM nowhere", "no such table: nowhere; the tables are millstream_queues, "),
        ("SELECT absent FROM customers", "no such column: absent"),
        ("SELECT ? AS n", "parameters"),
        ("INSERT INTO customers (name) VALUES ('Eve')", "--write allows"),
        ("DELETE FROM millstream_inbox", "--write allows"),
        ("PRAGMA query_only = 0; DELETE FROM customers", "--write allows"),
        ("SELECT json('{') AS j", "malformed JSON"),
    ],
)
def test_a_bad_statement_is_one_line_of_error(cli: Any, statement: str, reason: str) -> None:
    assert reason in cli.error("sql", "app.db", statement)
    with millstream.open("app.db") as ms:
        assert ms.sql("SELECT count(*) FROM customers").rows == [(2,)]


def test_a_missing_log_or_queue_has_no_rows(cli: Any) -> None:
    assert cli("sql", "app.db", "SELECT log FROM millstream_records WHERE log = 'none'") == "log\n"
    shown = cli("sql", "app.db", "SELECT queue FROM millstream_messages WHERE queue = 'none'")
    assert shown == "queue\n"


def test_a_place_without_a_store_is_refused(cli: Any) -> None:
    assert "there is no store at none.db" in cli.error("sql", "none.db", "SELECT 1 AS n", code=2)
    with closing(sqlite3.connect("plain.db")) as connection:
        connection.execute("CREATE TABLE mine (id)")
    message = cli.error("sql", "plain.db", "SELECT 1 AS n", code=2)
    assert "`millstream adopt " in message


def test_writes_are_for_the_applications_tables_and_the_inbox(cli: Any) -> None:
    def write(statement: str) -> None:
        assert cli("sql", "app.db", "--write", statement) == ""

    write("INSERT INTO customers (name) VALUES ('Eve'), ('Bob')")
    assert cli.stderr == "2 rows changed\n"
    write("ALTER TABLE customers ADD COLUMN millstream_id")
    write("UPDATE customers SET millstream_id = 1")
    write("INSERT INTO millstream_inbox (queue, value) VALUES ('emails', '7')")
    for statement in (
        "DELETE FROM millstream_record",
        "DROP TABLE millstream_delta",
        "ALTER TABLE millstream_file RENAME TO gone",
        "CREATE INDEX mine ON millstream_payload (id)",
        "CREATE TRIGGER mine AFTER INSERT ON millstream_delta BEGIN SELECT 1; END",
        "DROP TABLE millstream_inbox",
        "PRAGMA writable_schema = 1",
    ):
        assert "can only be read" in cli.error("sql", "app.db", "--write", statement)
    with millstream.open("app.db") as ms:
        assert ms.sql("SELECT count(*) FROM customers").rows == [(4,)]


def test_statements_that_read_leave_the_file_as_it_is(cli: Any) -> None:
    before = Path("app.db").read_bytes()
    cli("sql", "app.db", "SELECT * FROM millstream_messages, millstream_records LIMIT 1")
    assert Path("app.db").read_bytes() == before


def test_a_bucket_has_the_relations_alone(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("slatedb")
    place = f"file://{tmp_path}/bucket"
    with millstream.open(place) as ms:
        ms.log("orders").append(b"1")
    assert (
        cli("sql", place, "SELECT log, value FROM millstream_records") == "log\tvalue\norders\t1\n"
    )
    assert "is not a file" in cli.error("sql", place, "--write", "SELECT 1 AS n")


def test_a_reader_that_goes_away_ends_it(cli: Any, program: Program) -> None:
    statement = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with program("sql", "app.db", statement) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"i\n"
        running.stdout.close()
        assert running.stderr is not None
        assert (running.wait(60), running.stderr.read()) == (0, b"")


def test_an_interrupt_ends_a_statement_without_rows(cli: Any, program: Program) -> None:
    statement = (
        "SELECT 'begun' AS a; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT sum(i) AS total FROM n"
    )
    with program("sql", "app.db", "--json", statement, env=UNBUFFERED) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b'{"a":"begun"}\n'
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130


def test_the_prompt_runs_statements_of_several_lines(cli: Any) -> None:
    typed = (
        ".tables\n.help\n.nothing\nSELECT name\nFROM customers;\nSELEC;\n"
        "SELECT count(*) + 100 AS n FROM millstream_records WHERE log = 'orders';\n.quit\n"
    )
    shown, code = on_terminal(
        cli.directory, "sql", "app.db", typed=typed, HOME=str(cli.directory), NO_COLOR="1"
    )
    assert code == 0, shown
    for text in (
        "millstream_messages",
        "customers",
        "Zoë 🦊",
        "a semicolon",
        "there is no command .nothing",
        'error: near "SELEC": syntax error',
        "121",
        "1 row",
    ):
        assert text in shown, (text, shown)
    assert "FROM customers;" in Path(".millstream_history").read_text()
