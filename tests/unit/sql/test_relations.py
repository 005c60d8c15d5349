"""Relations of a store answer SQL: right rows, in any plan that SQLite chooses, and without reading all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream.command import Command
from millstream.errors import CannotOpen, InvalidInput
from millstream.log.commands import ReadBlocks
from millstream.sql import register
from millstream.sql.registration import RELATIONS
from millstream.testing import SimulatedClock

MS = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def ms(path: Path) -> Iterator[millstream.Millstream]:
    with millstream.open(path) as store:
        yield store


@pytest.fixture
def sql(ms: millstream.Millstream, path: Path) -> Iterator[Any]:
    """Runs a statement on a connection to the same file, and returns its rows."""
    connection = apsw.Connection(str(path))
    register(connection, ms)
    yield lambda statement, values=(): connection.execute(statement, values).fetchall()
    connection.close()


class Counting:
    """A session that counts the records it reads."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.limits, self.clock = session.limits, session.clock
        self.records = 0

    def execute(self, command: Command[Any]) -> Any:
        answer = self._session.execute(command)
        if isinstance(command, ReadBlocks):
            self.records += sum(block.count for block in answer)
        return answer

    def close(self) -> None:
        self._session.close()


def test_a_record_is_a_row(ms: millstream.Millstream, sql: Any) -> None:
    ms.log("orders").append({"id": 1}, key="k", headers={"n": 7}, timestamp=MS)
    ((log, offset, time, key, value, headers, partition, appended),) = sql(
        "SELECT * FROM millstream_records"
    )
    assert (log, offset, key, value, partition) == ("orders", 0, "k", '{"id":1}', 0)
    assert time == "2023-11-14 22:13:20.000"
    assert appended > time
    assert sql("SELECT value ->> 'id', headers ->> 'n' FROM millstream_records") == [(1, 7)]
    assert headers == '{"n":7,"content-type":"application/json"}'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\xff\x00", b"\xff\x00"),
        (b"a\x00b", b"a\x00b"),
        (b"", ""),
        ("Zoë 🦊", "Zoë 🦊"),
        (None, None),
        (b"x" * 2_000_000, "x" * 2_000_000),
    ],
)
def test_values_are_text_if_they_are_unicode(
    ms: millstream.Millstream, sql: Any, value: Any, shown: Any
) -> None:
    ms.log("log").append(
        value, key=value if isinstance(value, bytes) and value[:1] != b"x" else b"k"
    )
    assert sql("SELECT value FROM millstream_records") == [(shown,)]
    if isinstance(value, bytes):
        assert sql("SELECT CAST(value AS BLOB) FROM millstream_records") == [(value,)]


def test_headers_without_names_are_null_and_repeated_names_are_pairs(
    ms: millstream.Millstream, sql: Any
) -> None:
    ms.log("log").append(b"1")
    ms.log("log").append(b"2", headers=[("a", 1), ("a", b"\xff")])
    assert sql("SELECT headers FROM millstream_records") == [
        (None,),
        ('[["a",1],["a",{"base64":"/w=="}]]',),
    ]


WHERE = [
    ("log = 'a'", lambda log, offset: log == "a"),
    ("log = 'a' OR log = 'b'", lambda log, offset: log in "ab"),
    ("log IN ('a', 'c', 'missing')", lambda log, offset: log in "ac"),
    ("log = 'A' COLLATE NOCASE", lambda log, offset: log == "a"),
    ("log = 'missing'", lambda log, offset: False),
    ("log = ''", lambda log, offset: False),
    ("log = NULL", lambda log, offset: False),
    ("log IS NULL", lambda log, offset: False),
    ("log = 7", lambda log, offset: False),
    ("log = x'61'", lambda log, offset: False),
    ("log > 'a'", lambda log, offset: log > "a"),
    ("log LIKE 'A'", lambda log, offset: log == "a"),
    ("offset = 3", lambda log, offset: offset == 3),
    ("offset = '3'", lambda log, offset: offset == 3),
    ("offset = 3.5", lambda log, offset: False),
    ("offset > 2.5 AND offset <= 4.5", lambda log, offset: offset in (3, 4)),
    ("offset BETWEEN 2 AND 4 AND log = 'b'", lambda log, offset: log == "b" and 2 <= offset <= 4),
    ("offset < 1 OR offset > 28", lambda log, offset: offset < 1 or offset > 28),
    ("offset IN (1, 2) AND log IN ('a', 'b')", lambda log, offset: offset in (1, 2) and log in "ab"),
    ("offset > -5", lambda log, offset: True),
    ("offset < -5", lambda log, offset: False),
    ("offset > 9223372036854775807", lambda log, offset: False),
    ("offset >= -9223372036854775808", lambda log, offset: True),
    ("offset < 9e999", lambda log, offset: True),
    ("offset > 'text'", lambda log, offset: False),
    ("(log = 'a' AND offset = 1) OR (log = 'b' AND offset = 2)",
     lambda log, offset: (log, offset) in (("a", 1), ("b", 2))),
    ("partition = 0 AND offset = 4", lambda log, offset: offset == 4),
]  # fmt: skip


@pytest.fixture
def three_logs(ms: millstream.Millstream) -> None:
    for name in "abc":
        ms.log(name).append_many([b"%d" % number for number in range(30)])
    ms.log("b").truncate(before=2)


@pytest.mark.parametrize(("where", "expected"), WHERE, ids=[where for where, _ in WHERE])
@pytest.mark.parametrize("order", ["", "ORDER BY offset", "ORDER BY offset DESC"])
def test_every_condition_finds_its_rows(
    three_logs: None, sql: Any, where: str, expected: Any, order: str
) -> None:
    rows = [(n, i) for n in "abc" for i in range(2 if n == "b" else 0, 30) if expected(n, i)]
    found = sql(f"SELECT log, offset, value FROM millstream_records WHERE {where} {order}")
    assert sorted((log, offset) for log, offset, _ in found) == rows
    assert all(value == str(offset) for _, offset, value in found)
    places = sql(f"SELECT log, offset FROM millstream_records WHERE {where} {order}")
    assert sorted(places) == rows
    if order:
        offsets = [offset for _, offset, _ in found]
        assert offsets == sorted(offsets, reverse="DESC" in order)
        assert [offset for _, offset in places] == offsets


def test_partitions_are_one_log(ms: millstream.Millstream, sql: Any) -> None:
    clicks = ms.log("clicks", partitions=3)
    for number in range(60):
        clicks.append(b"%d" % number, key=f"k{number}")
    assert sql("SELECT name, records, partitions FROM millstream_logs") == [("clicks", 60, 3)]
    rows = sql("SELECT partition, offset, value FROM millstream_records WHERE log = 'clicks'")
    assert sorted(int(value) for _, _, value in rows) == list(range(60))
    assert {partition for partition, _, _ in rows} == {0, 1, 2}
    last = sql(
        "SELECT offset FROM millstream_records WHERE log = 'clicks' ORDER BY offset DESC LIMIT 7"
    )
    assert last == sorted(((offset,) for _, offset, _ in rows), reverse=True)[:7]
    one = sql("SELECT count(*) FROM millstream_records WHERE log = 'clicks' AND partition = 1")
    assert one == [(sum(partition == 1 for partition, _, _ in rows),)]
    with_or = sql("SELECT value FROM millstream_records WHERE partition = 1 OR partition = 2")
    assert len(with_or) == sum(partition > 0 for partition, _, _ in rows)


def test_only_the_needed_part_of_a_log_is_read(path: Path) -> None:
    with millstream.open(path) as ms:
        for first in range(0, 20_000, 100):
            ms.log("big").append_many([b"%d" % (first + number) for number in range(100)])
        session = Counting(ms.session)
        counted = millstream.Millstream(session)
        connection = apsw.Connection(":memory:")
        register(connection, counted)

        def read(statement: str) -> tuple[int, list[Any]]:
            session.records = 0
            rows = connection.execute(statement).fetchall()
            return session.records, rows

        records = "FROM millstream_records WHERE log = 'big'"
        few = 3_000
        count, rows = read(f"SELECT value {records} AND offset >= 10 LIMIT 5")
        assert (count < few, rows) == (True, [(str(n),) for n in range(10, 15)])
        count, rows = read(f"SELECT value {records} ORDER BY offset DESC LIMIT 3")
        assert (count < few, rows) == (True, [("19999",), ("19998",), ("19997",)])
        count, rows = read(f"SELECT value {records} AND offset = 12345")
        assert (count < few, rows) == (True, [("12345",)])
        assert read(f"SELECT count(*), max(offset) {records}") == (0, [(20_000, 19_999)])
        assert read("SELECT value FROM millstream_records WHERE log = 'none'") == (0, [])
        connection.close()


def test_bounds_on_the_time_of_appending_are_searched(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with millstream.open(tmp_path / "timed.db", clock=clock) as ms:
        for number in range(100):
            ms.log("log").append(b"%d" % number)
            clock.advance(60)
        connection = apsw.Connection(":memory:")
        register(connection, ms)
        everything = connection.execute("SELECT appended FROM millstream_records").fetchall()
        for (time,) in everything[::67]:
            for operator in ("<", "<=", "=", ">=", ">"):
                for value in (time, time[:19], time[:10], time.replace(" ", "T"), "no time"):
                    narrow = connection.execute(
                        f"SELECT appended FROM millstream_records WHERE appended {operator} ?",
                        (value,),
                    ).fetchall()
                    wide = connection.execute(
                        f"SELECT appended FROM millstream_records WHERE +appended {operator} ?",
                        (value,),
                    ).fetchall()
                    assert narrow == wide, (operator, value)
        connection.close()


def test_logs_are_rows(ms: millstream.Millstream, sql: Any) -> None:
    ms.log("a").append_many([b"x"] * 10)
    ms.log("a").truncate(before=4)
    ms.log("b").append(b"yy", timestamp=MS)
    columns = "name, records, start_offset, end_offset, partitions, retention"
    assert sql(f"SELECT {columns} FROM millstream_logs") == [
        ("a", 6, 4, 10, 0, None),
        ("b", 1, 0, 1, 0, None),
    ]
    assert sql("SELECT name FROM millstream_logs WHERE name = 'b'") == [("b",)]
    assert sql("SELECT name FROM millstream_logs WHERE name = 'b' OR name = 'a'") != []
    assert sql("SELECT name FROM millstream_logs WHERE name = 'none'") == []
    assert sql("SELECT name FROM millstream_logs WHERE name = ?", ("x" * 999,)) == []


def test_queues_are_rows(ms: millstream.Millstream, sql: Any) -> None:
    ms.create_queue("emails", max_attempts=3).put_many([{"n": n} for n in range(5)])
    ms.queue("emails").claim(1)
    ms.queue("emails").put({"n": 6}, delay=3600)
    ms.create_queue("other")
    assert sql("SELECT name, ready, delayed, in_flight, paused FROM millstream_queues") == [
        ("emails", 4, 1, 1, 0),
        ("other", 0, 0, 0, 0),
    ]
    assert sql("SELECT spec ->> 'max_attempts' FROM millstream_queues WHERE name = 'emails'") == [
        (3,)
    ]
    assert sql("SELECT * FROM millstream_queues WHERE name = 'none'") == []


def test_messages_are_rows_with_their_states(ms: millstream.Millstream, sql: Any) -> None:
    queue = ms.create_queue("jobs", max_attempts=1)
    queue.put_many([{"n": n} for n in range(4)], keys=[f"k{n}" for n in range(4)])
    done, failed, _ = queue.claim(3)
    queue.ack([done])
    queue.fail([failed], reason="no such address")
    later = queue.put({"n": 4}, delay=timedelta(hours=1))
    assert sql("SELECT id FROM millstream_messages WHERE state = 'delayed'") == [(later,)]
    states = sql("SELECT state, value ->> 'n', attempts FROM millstream_messages ORDER BY 2")
    assert states == [
        ("done", 0, 1),
        ("failed", 1, 1),
        ("in_flight", 2, 1),
        ("available", 3, 0),
        ("delayed", 4, 0),
    ]
    for state, number, _ in states:
        where = f"queue = 'jobs' AND state = '{state}'"
        assert sql(f"SELECT value ->> 'n' FROM millstream_messages WHERE {where}") == [(number,)]
    assert sql("SELECT key, reason FROM millstream_messages WHERE state = 'failed'") == [
        ("k1", "no such address")
    ]
    assert sql("SELECT * FROM millstream_messages WHERE queue = 'none'") == []
    assert sql("SELECT * FROM millstream_messages WHERE state = 'none'") == []
    either = sql(
        "SELECT count(*) FROM millstream_messages WHERE state = 'done' OR state = 'failed'"
    )
    assert either == [(2,)]


def test_messages_that_wait_unrouted_are_rows(ms: millstream.Millstream, sql: Any) -> None:
    ms.create_queue("big", sources=["orders"], filter="total > 100", start="earliest")
    ms.log("orders").append_many(
        [b"%d" % n for n in range(1_000)], headers=[{"total": n} for n in range(1_000)]
    )
    rows = sql("SELECT value, claim_id, log, offset FROM millstream_messages WHERE queue = 'big'")
    assert [row[0] for row in rows] == [str(n) for n in range(101, 1_000)]
    assert rows[0] == ("101", None, "orders", 101)
    ms.queue("big").claim(10)
    assert sql("SELECT count(*) FROM millstream_messages WHERE queue = 'big'") == [(899,)]


def test_the_applications_tables_join_with_the_relations(
    ms: millstream.Millstream, sql: Any
) -> None:
    with ms.transaction() as tx:
        tx.sql("CREATE TABLE customers (id INTEGER PRIMARY KEY, name)")
        tx.sql("INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob')")
        for customer in (2, 1, 2):
            tx.append("orders", {"customer": customer})
    assert sql(
        "SELECT name, count(*) FROM customers JOIN millstream_records ON value ->> 'customer' = id "
        "WHERE log = 'orders' GROUP BY name ORDER BY name"
    ) == [("Ada", 1), ("Bob", 2)]
    assert sql(
        "SELECT name, (SELECT offset FROM millstream_records AS r WHERE r.log = 'orders' "
        "AND r.offset = customers.id) FROM customers"
    ) == [("Ada", 1), ("Bob", 2)]


def test_a_transaction_of_the_connection_does_not_block_a_scan(
    ms: millstream.Millstream, sql: Any
) -> None:
    ms.create_queue("jobs").put({"n": 1})
    sql("BEGIN IMMEDIATE")
    assert sql("SELECT state FROM millstream_messages") == [("available",)]
    sql("INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', '2')")
    sql("COMMIT")


def test_scans_see_new_commits_and_deleted_records_are_left_out(
    ms: millstream.Millstream, path: Path
) -> None:
    ms.log("log").append_many([b"x" * 100_000 for _ in range(200)])
    connection = apsw.Connection(":memory:")
    register(connection, ms)
    rows = connection.execute("SELECT offset, value FROM millstream_records WHERE log = 'log'")
    assert next(rows)[0] == 0
    ms.log("log").truncate(before=150)
    offsets = [row[0] for row in rows]
    assert offsets == sorted(offsets)
    assert offsets[-50:] == list(range(150, 200))
    connection.close()


def test_relations_cannot_be_written(sql: Any) -> None:
    for statement in (
        "INSERT INTO millstream_records (log, value) VALUES ('a', 1)",
        "DELETE FROM millstream_queues",
        "UPDATE millstream_logs SET name = 'b'",
    ):
        with pytest.raises(apsw.SQLError, match="may not be modified"):
            sql(statement)


def test_a_place_is_opened_to_be_read(ms: millstream.Millstream, path: Path) -> None:
    ms.log("orders").append(b"1")
    connection = apsw.Connection(":memory:")
    with register(connection, path) as opened:
        assert connection.execute("SELECT value FROM millstream_records").fetchall() == [("1",)]
        with pytest.raises(millstream.MillstreamError):
            opened.log("orders").append(b"2")
        connection.close()


def test_a_missing_place_and_another_library_are_refused(tmp_path: Path) -> None:
    import sqlite3

    with pytest.raises(CannotOpen, match="no store at"):
        register(apsw.Connection(":memory:"), tmp_path / "none.db")
    with pytest.raises(InvalidInput, match=r"apsw.*not Connection"):
        register(sqlite3.connect(":memory:"), tmp_path / "none.db")  # type: ignore[arg-type]


def test_errors_of_the_store_reach_the_caller(ms: millstream.Millstream, path: Path) -> None:
    connection = apsw.Connection(":memory:")
    register(connection, ms)
    ms.close()
    with pytest.raises(millstream.MillstreamError, match="was closed"):
        connection.execute("SELECT * FROM millstream_logs").fetchall()


def test_every_relation_declares_its_key() -> None:
    for relation in RELATIONS:
        names = [column.name for column in relation.columns]
        assert len(set(names)) == len(names)
        assert set(relation.key) <= set(names)
        assert set(relation.searched) <= set(names)
