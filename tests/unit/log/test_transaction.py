"""Transactions: all steps or none, across logs, cursors and the application's own tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream import Cursor, Log, Millstream, Producer, Transaction
from millstream.errors import (
    ConstraintViolation,
    EndMoved,
    InvalidInput,
    InvalidName,
    MillstreamError,
    NotFound,
    OutOfRange,
)
from millstream.testing import Probe

Reopen = Callable[..., Millstream]
Step = Callable[[Transaction], object]


def run(ms: Millstream, *steps: Step) -> None:
    with ms.transaction() as tx:
        for step in steps:
            step(tx)


@pytest.fixture
def source(ms: Millstream) -> Log:
    log = ms.log("source")
    log.append_many([b"0", b"1", b"2"])
    return log


@pytest.fixture
def cursor(source: Log) -> Cursor:
    return source.cursor("c")


@pytest.fixture
def rows(ms: Millstream, tmp_path: Path) -> Callable[[], list[Any]]:
    """The application's table, as another connection sees it."""
    with ms.transaction() as tx:
        tx.sql("CREATE TABLE app (n INTEGER PRIMARY KEY)")

    def read() -> list[Any]:
        connection = apsw.Connection(str(tmp_path / "store.db"))
        try:
            return [n for (n,) in connection.execute("SELECT n FROM app ORDER BY n")]
        finally:
            connection.close()

    return read


def test_consume_and_produce_in_one_commit(
    ms: Millstream, source: Log, cursor: Cursor, reopen: Reopen
) -> None:
    before = ms.stats()["sequence"]
    with ms.transaction() as tx:
        taken = cursor.take(2)
        floor = tx.ack(cursor, taken)
        first = tx.append("target", b"sum", key="k", headers={"n": 2}, timestamp=5)
        many = tx.append_many(ms.log("target"), [b"a", b"b"], keys=["x", None])
        gone = tx.truncate(source, before=1)
        tx.set_metadata("target", "done", 2)

    assert (floor.result, first.result, many.result, gone.result) == (2, 0, 1, 1)
    assert ms.stats()["sequence"] == before + 1
    again = reopen()
    assert again.log("source").cursor("c").floor() == 2
    assert [(r.value, r.key) for r in again.log("target").read()] == [
        (b"sum", b"k"),
        (b"a", b"x"),
        (b"b", None),
    ]
    assert dict(again.log("target").metadata) == {"done": 2}


def test_nothing_happens_before_the_block_ends(ms: Millstream) -> None:
    with ms.transaction() as tx:
        answer = tx.append("x", b"0")
        assert len(ms.log("x")) == 0
        assert not answer.done
        with pytest.raises(RuntimeError):
            _ = answer.result

    assert (answer.done, answer.result, len(ms.log("x"))) == (True, 0, 1)


def test_an_exception_in_the_block_commits_nothing(ms: Millstream) -> None:
    before = ms.stats()["commits"]
    with pytest.raises(ZeroDivisionError):
        run(ms, lambda tx: tx.append("x", b"0"), lambda tx: 1 // 0)

    assert (len(ms.log("x")), ms.stats()["commits"]) == (0, before)


def test_steps_see_those_before_them(ms: Millstream) -> None:
    with ms.transaction() as tx:
        tx.append("x", b"0", expect_end=0)
        tx.append("x", b"1", expect_end=1)
        tx.append_many("x", [b"2", b"3"])
        tx.truncate("x", before=2)
        last = tx.append("x", b"4", producer=Producer("p", 0))
        same = tx.append("x", b"4", producer=Producer("p", 0))

    assert (last.result, same.result) == (4, 4)
    assert [record.value for record in ms.log("x").read()] == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (lambda tx, cursor: tx.append("source", b"x", expect_end=99), EndMoved),
        (lambda tx, cursor: tx.ack(cursor, 50), OutOfRange),
        (lambda tx, cursor: tx.seek(cursor, 50), OutOfRange),
        (lambda tx, cursor: tx.sql("INSERT INTO nowhere VALUES (1)"), InvalidInput),
        (lambda tx, cursor: tx.sql("INSERT INTO app VALUES (1)"), InvalidInput),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_failing_step_undoes_all_steps(
    ms: Millstream,
    cursor: Cursor,
    rows: Callable[[], list[Any]],
    failing: Callable[[Transaction, Cursor], object],
    error: type[MillstreamError],
    place: int,
) -> None:
    with ms.transaction() as tx:
        tx.sql("INSERT INTO app VALUES (1)")
    steps: list[Step] = [
        lambda tx: tx.sql("INSERT INTO app VALUES (2)"),
        lambda tx: tx.append("target", b"x"),
        lambda tx: tx.ack(cursor, [0, 2]),
    ]
    steps.insert(place, lambda tx: failing(tx, cursor))

    with pytest.raises(error):
        run(ms, *steps)

    assert rows() == [1]
    assert ms.log("target").info() is None
    assert (cursor.info().floor, cursor.info().ranges) == (0, [])
    assert ms.log("target").append(b"next") == 0


def test_only_the_failing_transaction_is_undone(
    ms: Millstream, rows: Callable[[], list[Any]]
) -> None:
    from millstream import command
    from millstream.embedded.rules import operation
    from millstream.format.packing import Single
    from millstream.log import commands as c
    from millstream.store.commit.ticket import Ticket

    append = c.Append("x", Single(b"v", None, b"", None))

    def steps(n: int) -> command.Transact:
        return command.Transact([command.Sql("INSERT INTO app VALUES (?)", [n]), append])

    group: list[Ticket[Any]] = [Ticket(operation(steps(n))) for n in (1, 2, 1, 3)]
    probe = Probe(ms)
    with probe.hold_commits():
        probe.store.committer.commit_group(group)

    assert [type(ticket.error) for ticket in group] == [
        type(None),
        type(None),
        ConstraintViolation,
        type(None),
    ]
    assert rows() == [1, 2, 3]
    assert len(ms.log("x")) == 3


def test_sql_alone_is_committed(
    ms: Millstream, rows: Callable[[], list[Any]], reopen: Reopen
) -> None:
    with ms.transaction() as tx:
        tx.sql("INSERT INTO app VALUES (?)", [7])
        tx.sql("INSERT INTO app VALUES (:n)", [8])
    assert rows() == [7, 8]
    reopen()
    assert rows() == [7, 8]


def test_sql_beside_a_step_that_changes_nothing_is_committed(
    ms: Millstream, rows: Callable[[], list[Any]]
) -> None:
    with ms.transaction() as tx:
        tx.sql("INSERT INTO app VALUES (1)")
        tx.truncate("x", before=0)

    assert rows() == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM millstream_record",
        "INSERT INTO millstream_delta VALUES (1, x'', 0)",
        "UPDATE millstream_payload SET value = x''",
        "DELETE FROM MILLSTREAM_BLOCK",
        "DROP TABLE millstream_record",
        "ALTER TABLE millstream_delta ADD COLUMN x",
        "CREATE INDEX i ON millstream_record (crc)",
        "CREATE TRIGGER t AFTER INSERT ON millstream_delta BEGIN SELECT 1; END",
        "INSERT INTO app SELECT id FROM millstream_delta",
        "PRAGMA synchronous = OFF",
        "PRAGMA user_version = 9",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "COMMIT",
        "ROLLBACK",
        "END",
        "BEGIN",
        "SAVEPOINT a",
        "RELEASE operation",
        "ROLLBACK TO operation",
        "INSERT INTO app VALUES (5); COMMIT",
        "VACUUM",
        "no sql at all",
        "INSERT INTO app VALUES (?)",
    ],
)
def test_what_is_not_the_applications_is_refused(
    ms: Millstream, rows: Callable[[], list[Any]], statement: str
) -> None:
    with pytest.raises(InvalidInput):
        run(ms, lambda tx: tx.append("x", b"undone"), lambda tx: tx.sql(statement))

    assert len(ms.log("x")) == 0
    with ms.transaction() as tx:
        tx.append("x", b"0")
        tx.sql("INSERT INTO app VALUES (1)")
    assert (rows(), len(ms.log("x"))) == ([1], 1)


def test_views_and_triggers_do_not_lead_round_it(
    ms: Millstream, rows: Callable[[], list[Any]]
) -> None:
    with ms.transaction() as tx:
        tx.sql("CREATE TRIGGER spy AFTER INSERT ON app BEGIN DELETE FROM millstream_delta; END")
    with pytest.raises(InvalidInput), ms.transaction() as tx:
        tx.sql("INSERT INTO app VALUES (1)")

    assert rows() == []
    assert ms.log("x").append(b"0") == 0


def test_constraints_of_the_application_undo_its_transaction(
    ms: Millstream, rows: Callable[[], list[Any]]
) -> None:
    for statement in ("INSERT OR ROLLBACK INTO app VALUES (1)", "INSERT INTO app VALUES (1)"):
        with ms.transaction() as tx:
            tx.sql("INSERT OR IGNORE INTO app VALUES (1)")

        steps = [lambda tx: tx.append("x", b"undone"), lambda tx, s=statement: tx.sql(s)]
        with pytest.raises(MillstreamError):
            run(ms, *steps)
        assert len(ms.log("x")) == 0
    assert ms.log("x").append(b"0") == 0
    assert rows() == [1]


@pytest.mark.embedded
def test_a_deferred_foreign_key_undoes_only_its_transaction(ms: Millstream) -> None:
    with ms.transaction() as tx:
        tx.sql("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
        tx.sql("CREATE TABLE child (n REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(InvalidInput), ms.transaction() as tx:
        tx.sql("INSERT INTO child VALUES (1)")

    assert ms.log("x").append(b"0") == 0


def test_a_parameter_of_another_type_is_refused(
    ms: Millstream, rows: Callable[[], list[Any]]
) -> None:
    with pytest.raises(InvalidInput), ms.transaction() as tx:
        tx.sql("INSERT INTO app VALUES (?)", [object()])


def test_our_prefix_is_reserved(ms: Millstream) -> None:
    with pytest.raises(InvalidInput), ms.transaction() as tx:
        tx.sql("CREATE TABLE millstream_mine (n)")


def test_a_cursor_knows_what_a_transaction_has_acknowledged(ms: Millstream, cursor: Cursor) -> None:
    with ms.transaction() as tx:
        tx.ack(cursor, 0)

    assert (cursor.is_acked(0), cursor.floor()) == (True, 1)
    assert [record.offset for record in cursor.take()] == [1]


def test_a_cursor_knows_where_a_transaction_has_moved_it(ms: Millstream, cursor: Cursor) -> None:
    with ms.transaction() as tx:
        tx.seek(cursor, 2)

    assert (cursor.floor(), cursor.position()) == (2, 2)


def test_seek_lasts(ms: Millstream, cursor: Cursor, reopen: Reopen) -> None:
    with ms.transaction() as tx:
        tx.ack(cursor, [0, 2])
        moved = tx.seek(cursor, 2)
    assert moved.result == 2

    assert reopen().log("source").cursor("c").info().floor == 2


def test_a_cursor_that_is_gone_is_told(ms: Millstream, cursor: Cursor) -> None:
    cursor.delete()
    with pytest.raises(NotFound):
        run(ms, lambda tx: tx.append("x", b"undone"), lambda tx: tx.ack(cursor, 0))

    assert ms.log("x").info() is None


def test_steps_are_checked_when_they_are_named(ms: Millstream) -> None:
    with ms.transaction() as tx:
        with pytest.raises(InvalidInput):
            tx.append("x", object())
        with pytest.raises(InvalidName):
            tx.append("", b"x")
        with pytest.raises(InvalidName):
            tx.set_metadata("x", "", 1)
        tx.append("x", b"good")

    assert len(ms.log("x")) == 1


def test_an_empty_transaction_commits_nothing(ms: Millstream) -> None:
    before = ms.stats()["commits"]
    with ms.transaction():
        pass
    with ms.transaction() as tx:
        nothing = tx.append_many("x", [])

    assert (nothing.result, ms.stats()["commits"]) == (None, before)


def test_too_many_steps_are_refused(ms: Millstream) -> None:
    with pytest.raises(InvalidInput):
        run(ms, *[lambda tx: tx.append("x", b"")] * 10_001)

    assert ms.log("x").info() is None


def test_a_failing_transaction_leaves_what_was_folded(ms: Millstream, cursor: Cursor) -> None:
    cursor.ack(0)
    ms.fold()
    cursor.ack(2)
    with pytest.raises(OutOfRange):
        run(ms, lambda tx: tx.ack(cursor, 1), lambda tx: tx.ack(cursor, 77))

    assert (cursor.info().floor, cursor.info().ranges) == (1, [(2, 3)])


# What statements answer.


@pytest.mark.embedded
def test_a_statement_answers_rows_and_how_many_it_changed(ms: Millstream) -> None:
    with ms.transaction() as tx:
        made = tx.sql("CREATE TABLE app (n INTEGER PRIMARY KEY, t TEXT)")
        added = tx.sql("INSERT INTO app VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        read = tx.sql("SELECT n, t FROM app WHERE n > ? ORDER BY n", [1])
        named = tx.sql("DELETE FROM app WHERE n = :n RETURNING t", {"n": 3})
        none = tx.sql("SELECT n FROM app WHERE n = 99")
        with pytest.raises(RuntimeError, match="after the `with` block"):
            _ = read.result
        assert repr(read) == "Later(after the commit)"

    assert repr(read) == f"Later({read.result!r})"
    assert (made.result.rows, made.result.changed) == ([], 0)
    assert (added.result.rows, added.result.changed) == ([], 3)
    assert (list(read.result), read.result.changed) == ([(2, "b"), (3, "c")], 0)
    assert (named.result.rows, named.result.changed) == ([("c",)], 1)
    assert len(none.result) == 0


@pytest.mark.embedded
def test_the_applications_tables_are_read_outside_of_transactions(
    ms: Millstream, tmp_path: Path
) -> None:
    with ms.transaction() as tx:
        tx.sql("CREATE TABLE app (n INTEGER PRIMARY KEY)")
        tx.sql("INSERT INTO app VALUES (1), (2)")

    assert ms.sql("SELECT n FROM app ORDER BY n").rows == [(1,), (2,)]
    assert list(ms.sql("SELECT n FROM app WHERE n = ?", [2])) == [(2,)]
    assert list(ms.sql("SELECT n FROM app WHERE n = :n", {"n": 1})) == [(1,)]
    with millstream.open(tmp_path / "store.db") as other:
        with other.transaction() as tx:
            tx.sql("INSERT INTO app VALUES (3)")
        assert ms.sql("SELECT max(n) FROM app").rows == [(3,)]
    ms.log("x").append(b"goes on")
    assert len(ms.log("x")) == 1


@pytest.mark.embedded
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO app VALUES (1)",
        "DELETE FROM app",
        "UPDATE app SET n = 1",
        "CREATE TABLE more (n)",
        "DROP TABLE app",
        "SELECT 1; DELETE FROM app",
        "INSERT INTO app VALUES (1) RETURNING n",
        "SELECT * FROM millstream_record",
        "PRAGMA user_version = 7",
        "ATTACH ':memory:' AS other",
        "COMMIT",
        "BEGIN",
    ],
)
def test_a_statement_that_writes_is_told_to_use_a_transaction(
    ms: Millstream, statement: str
) -> None:
    with ms.transaction() as tx:
        tx.sql("CREATE TABLE app (n INTEGER PRIMARY KEY)")
        tx.sql("INSERT INTO app VALUES (0)")
    with pytest.raises(InvalidInput, match=r"ms\.transaction\(\)"):
        ms.sql(statement)
    assert ms.sql("SELECT n FROM app").rows == [(0,)]
    assert ms.log("x").append(b"0") == 0


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("no sql at all", ()),
        ("VACUUM", ()),
        ("SELECT * FROM nowhere", ()),
        ("SELECT ?", ()),
        ("SELECT ?", [object()]),
        ("SELECT ?", "x"),
        ("SELECT ?", 5),
        (5, ()),
        ("SELECT 1/0, abs(-9223372036854775808)", ()),
    ],
)
def test_what_is_no_statement_is_refused(ms: Millstream, statement: Any, parameters: Any) -> None:
    with pytest.raises(InvalidInput):
        ms.sql(statement, parameters)
    with pytest.raises(InvalidInput), ms.transaction() as tx:
        tx.sql(statement, parameters)
    assert ms.sql("SELECT 1").rows == [(1,)]


def test_a_store_without_tables_says_so() -> None:
    with millstream.open(":memory:") as ms, pytest.raises(InvalidInput, match=r"ms\.sql needs"):
        ms.sql("SELECT 1")
