"""Constraints of the application's tables: the error says which, and who goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import ConstraintViolation, InvalidInput

TABLES = """
    CREATE TABLE customers (
        id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, age INTEGER CHECK (age >= 0), country, zip,
        CONSTRAINT grown CHECK (age <> 17), UNIQUE (country, zip)
    );
    CREATE UNIQUE INDEX by_case ON customers (lower(email));
    CREATE TABLE orders (
        id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers,
        payer INTEGER REFERENCES customers DEFERRABLE INITIALLY DEFERRED
    ) STRICT;
    CREATE TABLE tags (name TEXT PRIMARY KEY, label) WITHOUT ROWID;
    INSERT INTO customers VALUES (1, 'ada@example.org', 36, 'GB', 1);
    INSERT INTO orders VALUES (1, 1, NULL);
    INSERT INTO tags VALUES ('new', 'New');
"""

CASES: list[tuple[str, str, str | None, list[str], str | None]] = [
    (
        "INSERT INTO customers (email) VALUES ('ada@example.org')",
        "unique",
        None,
        [],
        "by_case",
    ),
    (
        "INSERT INTO customers (email, country, zip) VALUES ('b', 'GB', 1)",
        "unique",
        "customers",
        ["country", "zip"],
        None,
    ),
    ("INSERT INTO customers (id, email) VALUES (1, 'b')", "primary key", "customers", ["id"], None),
    ("INSERT INTO tags VALUES ('new', '')", "primary key", "tags", ["name"], None),
    ("UPDATE customers SET email = NULL", "not null", "customers", ["email"], None),
    ("UPDATE customers SET age = -1", "check", "customers", [], "age >= 0"),
    ("UPDATE customers SET age = 17", "check", "customers", [], "grown"),
    ("INSERT INTO orders VALUES (2, 9, NULL)", "foreign key", "orders", [], None),
    ("DELETE FROM customers", "foreign key", "customers", [], None),
    ("INSERT INTO orders VALUES (2, 'x', NULL)", "datatype", "orders", ["customer"], None),
]


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[millstream.Millstream]:
    with millstream.open(tmp_path / "app.db") as store:
        store.create_queue("jobs")
        with store.begin() as tx:
            tx.sql(TABLES)
        yield store


@pytest.mark.parametrize(("statement", "kind", "table", "columns", "constraint"), CASES)
def test_a_violation_names_the_constraint(
    ms: millstream.Millstream,
    statement: str,
    kind: str,
    table: str | None,
    columns: list[str],
    constraint: str | None,
) -> None:
    with ms.begin() as tx:
        tx.sql("INSERT INTO tags VALUES ('kept', '')")
        with pytest.raises(ConstraintViolation) as caught:
            tx.sql(statement)
        tx.put("jobs", "goes on")
    error = caught.value
    assert (error.kind, error.columns, error.constraint) == (kind, columns, constraint)
    assert error.table == (table or "customers")
    assert error.statement == statement
    assert isinstance(error, InvalidInput)
    assert "constraint failed" in str(error) or kind == "datatype"
    assert ms.sql("SELECT count(*) FROM tags").scalar() == 2
    assert ms.sql("SELECT email, age FROM customers").all() == [("ada@example.org", 36)]
    (message,) = ms.queue("jobs").claim(10)
    assert message.value == b"goes on"


def test_a_caught_violation_leaves_a_choice(ms: millstream.Millstream) -> None:
    for _ in range(2):
        with ms.begin() as tx:
            try:
                tx.sql("INSERT INTO tags VALUES ('sale', 1)")
            except ConstraintViolation:
                tx.sql("UPDATE tags SET label = label + 1 WHERE name = 'sale'")
    assert ms.sql("SELECT label FROM tags WHERE name = 'sale'").scalar() == 2


def test_a_deferred_constraint_is_checked_at_the_end(ms: millstream.Millstream) -> None:
    def block() -> None:
        with ms.begin() as tx:
            tx.sql("INSERT INTO orders VALUES (2, 1, 9)")
            tx.put("jobs", 1)

    with pytest.raises(ConstraintViolation) as caught:
        block()
    assert caught.value.kind == "foreign key"
    with ms.begin() as tx:
        tx.sql("INSERT INTO orders VALUES (3, 1, 9)")
        tx.sql("INSERT INTO customers (id, email) VALUES (9, 'late@example.org')")
    assert [id for (id,) in ms.sql("SELECT id FROM orders")] == [1, 3]
    assert not ms.queue("jobs").claim(1)


def test_a_violation_in_a_gathered_transaction_fails_its_caller_alone(
    ms: millstream.Millstream,
) -> None:
    waiting = threading.Barrier(8)
    outcomes: list[Any] = [None] * 8

    def insert(number: int) -> None:
        waiting.wait(60)
        try:
            with ms.transaction() as tx:
                tx.append("log", number)
                tx.sql("INSERT INTO tags VALUES (?, '')", ["new" if number % 2 else str(number)])
        except ConstraintViolation as error:
            outcomes[number] = error

    with ms.begin():  # the others gather meanwhile
        threads = [threading.Thread(target=insert, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert [getattr(outcome, "table", None) for outcome in outcomes] == [None, "tags"] * 4
    stored = sorted(record.json() for record in ms.log("log").read())
    assert stored == [0, 2, 4, 6]
    assert ms.sql("SELECT count(*) FROM tags").scalar() == 5
