"""The application's own tables in a cluster: they are the same on every node, or the write is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.engine.protocol import query_tables
from millstream.errors import InvalidInput
from tests.unit.cluster.trio import STEADY, Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with Trio(tmp_path, STEADY) as found:
        found.start("a", "b", "c")
        run(found, "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER)")
        yield found


def run(trio: Trio, *statements: str | tuple[str, Any]) -> None:
    with trio.leader().ms.transaction() as tx:
        tx.append("orders", b"x")
        for one in statements:
            tx.sql(*((one,) if isinstance(one, str) else one))


def tables(trio: Trio, query: str) -> list[Any]:
    """What a query finds, the same on all nodes."""
    trio.settle()
    found = [list(query_tables(one.inner, query, ()).rows) for one in trio.machines.values()]
    assert found[0] == found[1] == found[2]
    return found[0]


def test_rows_that_a_transaction_changes_are_the_same_on_all_nodes(trio: Trio) -> None:
    run(trio, ("INSERT INTO stock VALUES (?, ?), ('pear', abs(random() % 1000))", ("apple", 3)))
    run(trio, "UPDATE stock SET count = 7 WHERE item = 'apple'")
    run(trio, "DELETE FROM stock WHERE item = 'pear'", "INSERT INTO stock VALUES ('plum', 1)")

    assert tables(trio, "SELECT * FROM stock ORDER BY item") == [("apple", 7), ("plum", 1)]


def test_a_change_of_the_schema_travels_between_changes_of_rows(trio: Trio) -> None:
    run(
        trio,
        "INSERT INTO stock VALUES ('apple', 3)",
        "ALTER TABLE stock ADD COLUMN place TEXT; /* and now */ CREATE INDEX by_place ON stock(place)",
        "INSERT INTO stock VALUES ('pear', 4, 'cellar')",
        "CREATE TABLE gone (id INTEGER PRIMARY KEY); INSERT INTO gone VALUES (1)",
        "-- a comment\nDROP TABLE gone",
    )

    assert tables(trio, "SELECT * FROM stock ORDER BY item") == [
        ("apple", 3, None),
        ("pear", 4, "cellar"),
    ]
    names = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'millstream%' ORDER BY name"
    assert [name for (name,) in tables(trio, names)] == [
        "by_place",
        "sqlite_autoindex_millstream_record_1",
        "sqlite_autoindex_stock_1",
        "stock",
    ]


def test_what_triggers_and_foreign_keys_do_is_not_done_twice(trio: Trio) -> None:
    run(
        trio,
        "CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT)",
        "CREATE TRIGGER noted AFTER INSERT ON stock BEGIN"
        " INSERT INTO journal(item) VALUES (new.item); END",
        "CREATE TABLE part (id INTEGER PRIMARY KEY,"
        " item TEXT REFERENCES stock(item) ON DELETE CASCADE)",
    )
    run(trio, "INSERT INTO stock VALUES ('apple', 1)", "INSERT INTO part VALUES (1, 'apple')")
    run(trio, "INSERT INTO stock VALUES ('pear', 1)", "DELETE FROM stock WHERE item = 'apple'")

    assert tables(trio, "SELECT id, item FROM journal") == [(1, "apple"), (2, "pear")]
    assert tables(trio, "SELECT * FROM part") == []


def test_an_operation_that_fails_takes_nothing_along(trio: Trio) -> None:
    with pytest.raises(InvalidInput, match="no such table"):
        run(trio, "INSERT INTO stock VALUES ('apple', 1)", "INSERT INTO nowhere VALUES (1)")
    run(trio, "INSERT INTO stock VALUES ('pear', 1)")

    assert tables(trio, "SELECT item FROM stock") == [("pear",)]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["CREATE TABLE loose (a)", "INSERT INTO loose VALUES (1)"], "has no PRIMARY KEY"),
        (["CREATE TABLE loose AS SELECT 1 AS a", "DELETE FROM loose"], "has no PRIMARY KEY"),
        (["INSERT INTO stock VALUES (NULL, 1)"], "NULL in its PRIMARY KEY"),
        (["CREATE TEMP TABLE passing (id INTEGER PRIMARY KEY)"], "own tables only"),
        (["CREATE VIRTUAL TABLE words USING fts5(text)"], "own tables only"),
    ],
)
def test_what_cannot_be_the_same_elsewhere_is_refused_with_the_reason(
    trio: Trio, statements: list[str], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        run(trio, *statements)
    assert tables(trio, "SELECT count(*) FROM stock") == [(0,)]


def test_a_node_refuses_interactive_transactions(trio: Trio) -> None:
    with pytest.raises(InvalidInput, match=r"ms\.begin.*cluster does not offer"):
        trio.leader().ms.begin().__enter__()
    run(trio, "INSERT INTO stock VALUES ('apple', 3)")
    assert tables(trio, "SELECT * FROM stock") == [("apple", 3)]
