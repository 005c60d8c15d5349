"""Interactive transactions: `ms.begin()` reads and writes the application's tables before the commit."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.doctor import examine
from millstream.errors import (
    CannotOpen,
    ConstraintViolation,
    InvalidInput,
    MillstreamError,
    NotFound,
    TransactionExpired,
    WriteFailed,
)
from millstream.store.commit.writer_turn import WriterTurn
from tests.interrupting import code_on_main, interrupted
from tests.unit.surfaces import SURFACES, surface_of

PATIENCE_S = 60.0
"""How long a test waits before it fails."""

SHORT_S = 0.02
"""A time limit that a test waits for."""

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def ms(path: Path) -> Iterator[millstream.Millstream]:
    with millstream.open(path) as store:
        prepare(store)
        yield store


def prepare(store: Any) -> None:
    store.create_queue("jobs")
    with store.begin() as tx:
        tx.sql("CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0))")
        tx.sql("INSERT INTO stock VALUES ('apple', 3), ('pear', 5)")


def stock(store: Any) -> dict[str, int]:
    return dict(store.sql("SELECT item, n FROM stock").rows)


def waiting(store: Any) -> list[Any]:
    return [message.json() for message in store.queue("jobs").peek(100)]


class Other(threading.Thread):
    """A call on another thread, and its outcome."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.done = threading.Event()
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.result = error
        self.done.set()

    def finish(self) -> Any:
        assert self.done.wait(PATIENCE_S), "the call waits for ever"
        return self.result


# What a transaction does, for threads and coroutines.


@pytest.mark.parametrize("name", SURFACES)
def test_reads_decide_what_one_commit_stores(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)
        with ms.begin() as tx:
            row = tx.sql("SELECT n FROM stock WHERE item = ?", ["apple"]).one()
            tx.sql("UPDATE stock SET n = :left WHERE item = 'apple'", {"left": row["n"] - 1})
            left = tx.sql("SELECT n FROM stock WHERE item = 'apple'").scalar()
            message = tx.put("jobs", {"left": left})
            tx.append("sales", {"item": "apple"})
        assert message.result is not None
        assert stock(ms) == {"apple": 2, "pear": 5}
        assert waiting(ms) == [{"left": 2}]
        assert [record.json() for record in ms.log("sales").read()] == [{"item": "apple"}]


@pytest.mark.parametrize("name", SURFACES)
def test_an_exception_commits_nothing(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)

        def block() -> None:
            with ms.begin() as tx:
                tx.sql("DELETE FROM stock")
                tx.put("jobs", 1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            block()
        assert (stock(ms), waiting(ms)) == ({"apple": 3, "pear": 5}, [])
        ms.log("x").append(b"goes on")


@pytest.mark.parametrize("name", SURFACES)
def test_a_step_that_is_refused_commits_nothing(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)

        def block() -> None:
            with ms.begin() as tx:
                tx.sql("DELETE FROM stock")
                tx.append("x", b"undone")
                tx.put("nowhere", 1)

        with pytest.raises(NotFound):
            block()
        assert stock(ms) == {"apple": 3, "pear": 5}
        assert list(ms.log("x").read()) == []
        ms.log("x").append(b"goes on")


@pytest.mark.parametrize("name", SURFACES)
def test_a_savepoint_undoes_its_statements_and_steps_alone(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)
        with ms.begin() as tx:
            tx.put("jobs", 1)
            with suppress(ZeroDivisionError), tx.savepoint():
                tx.sql("DELETE FROM stock")
                undone = tx.put("jobs", 2)
                with tx.savepoint():
                    tx.sql("INSERT INTO stock VALUES ('fig', 1)")
                    tx.append("sales", "undone as well")
                raise ZeroDivisionError
            with tx.savepoint():
                tx.sql("UPDATE stock SET n = 4 WHERE item = 'apple'")
                with suppress(ConstraintViolation), tx.savepoint():
                    tx.sql("UPDATE stock SET n = 9 WHERE item = 'pear'")
                    tx.sql("UPDATE stock SET n = -1 WHERE item = 'apple'")
                kept = tx.put("jobs", 3)
        assert stock(ms) == {"apple": 4, "pear": 5}
        assert waiting(ms) == [1, 3]
        assert ms.queue("jobs").message(kept.result).state == "available"
        assert list(ms.log("sales").read()) == []
        with pytest.raises(RuntimeError, match="not been committed"):
            assert undone.result


@pytest.mark.parametrize("name", SURFACES)
def test_an_exception_through_a_savepoint_commits_nothing(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)

        def block() -> None:
            with ms.begin() as tx:
                tx.sql("DELETE FROM stock WHERE item = 'pear'")
                with tx.savepoint():
                    tx.sql("DELETE FROM stock")
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            block()
        assert stock(ms) == {"apple": 3, "pear": 5}
        ms.log("x").append(b"goes on")


def test_a_savepoint_whose_time_is_up_stores_nothing(ms: millstream.Millstream) -> None:
    def block() -> None:
        with ms.begin(timeout=SHORT_S) as tx:
            with suppress(TransactionExpired), tx.savepoint():
                tx.sql("DELETE FROM stock")
                tx.sql(ENDLESS)
            tx.put("jobs", 1)

    with pytest.raises(TransactionExpired):
        block()
    assert (stock(ms), waiting(ms)) == ({"apple": 3, "pear": 5}, [])


def test_a_savepoint_that_sqlite_ended_stores_nothing(ms: millstream.Millstream) -> None:
    def block() -> None:
        with ms.begin() as tx:
            tx.sql("UPDATE stock SET n = 1")
            with suppress(MillstreamError), tx.savepoint():
                tx.sql("INSERT OR ROLLBACK INTO stock VALUES ('apple', 1)")
            tx.put("jobs", 1)

    with pytest.raises(WriteFailed, match="ended the transaction"):
        block()
    assert (stock(ms), waiting(ms)) == ({"apple": 3, "pear": 5}, [])


@pytest.mark.parametrize("name", SURFACES)
def test_a_missing_value_is_named(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)
        statement = "SELECT n FROM stock WHERE item = :item"
        with pytest.raises(InvalidInput, match="parameter 'item', and no given value"):
            ms.sql(statement, {"itme": "apple"})
        with ms.begin() as tx:
            with pytest.raises(InvalidInput, match="parameter 'item', and no given value"):
                tx.sql(statement, {"itme": "apple"})
            assert tx.sql(statement, {"item": "apple"}).scalar() == 3


@pytest.mark.parametrize("name", SURFACES)
def test_a_transaction_that_lasts_too_long_is_rolled_back(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms, millstream.open(path) as other:
        prepare(ms)

        def block() -> None:
            with ms.begin(timeout=SHORT_S) as tx:
                tx.sql("DELETE FROM stock")
                other.log("x").append(b"waits for the limit, and goes on")
                with pytest.raises(TransactionExpired, match="longer timeout"):
                    tx.sql("SELECT 1")
                with pytest.raises(TransactionExpired):
                    tx.put("jobs", 1)

        with pytest.raises(TransactionExpired) as caught:
            block()
        assert caught.value.timeout == SHORT_S
        assert stock(ms) == {"apple": 3, "pear": 5}
        assert len(list(ms.log("x").read())) == 1
        with ms.begin() as tx:
            tx.sql("DELETE FROM stock")
        assert stock(ms) == {}


@pytest.mark.parametrize("name", SURFACES)
def test_a_statement_that_lasts_too_long_is_interrupted(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)

        def block() -> None:
            with ms.begin(timeout=SHORT_S) as tx:
                tx.sql("DELETE FROM stock")
                tx.sql(ENDLESS)

        with pytest.raises(TransactionExpired):
            block()
        assert stock(ms) == {"apple": 3, "pear": 5}
        ms.log("x").append(b"goes on")


@pytest.mark.parametrize("name", SURFACES)
def test_calls_outside_of_the_block_are_refused(name: str, path: Path) -> None:
    with surface_of(name) as surface, surface.open(path) as ms:
        prepare(ms)
        tx = ms.begin()
        with pytest.raises(RuntimeError, match="not begun"):
            tx.put("jobs", 1)
        with tx:
            pass
        for call in (lambda: tx.put("jobs", 1), lambda: tx.sql("SELECT 1")):
            with pytest.raises(RuntimeError, match="has ended"):
                call()
        with pytest.raises(RuntimeError, match="one block"), tx:
            pass
        assert waiting(ms) == []


@pytest.mark.parametrize("timeout", [0, -1, "5", None, float("nan")])
def test_a_time_limit_is_a_positive_number(ms: millstream.Millstream, timeout: Any) -> None:
    with pytest.raises(InvalidInput):
        ms.begin(timeout=timeout)


# Results.


def test_a_result_is_read_as_its_caller_likes(ms: millstream.Millstream) -> None:
    with ms.begin() as tx:
        result = tx.sql("SELECT item, n AS number FROM stock ORDER BY item")
        assert result.all() == [("apple", 3), ("pear", 5)] == list(result)
        assert (len(result), result.rowcount, result.changed) == (2, -1, 0)
        assert result.scalar() == "apple"
        with pytest.raises(InvalidInput, match="2 rows"):
            result.one()
        with pytest.raises(InvalidInput, match="2 rows"):
            result.one_or_none()

        row = tx.sql("SELECT item, n AS number FROM stock WHERE item = 'pear'").one()
        item, number = row
        assert (item, number, row[0], row[-1], row["number"], row[:1]) == (
            "pear",
            5,
            "pear",
            5,
            5,
            ("pear",),
        )
        assert dict(row) == {"item": "pear", "number": 5}
        assert row.keys() == ("item", "number")
        with pytest.raises(KeyError, match="the columns are item, number"):
            _ = row["n"]
        copy = pickle.loads(pickle.dumps(row))
        assert (copy, copy["number"]) == (row, 5)

        empty = tx.sql("SELECT item FROM stock WHERE n > 100")
        assert (empty.one_or_none(), empty.scalar(), empty.all()) == (None, None, [])
        with pytest.raises(NotFound):
            empty.one()


def test_a_result_tells_of_changes_as_sqlite3_does(
    ms: millstream.Millstream, tmp_path: Path
) -> None:
    statements = [
        "CREATE TABLE lines (id INTEGER PRIMARY KEY, text)",
        "INSERT INTO lines (text) VALUES ('a'), ('b')",
        "INSERT INTO lines (text) SELECT 'of ' || last_insert_rowid()",
        "UPDATE lines SET text = 'c' WHERE id < 3",
        "UPDATE lines SET text = 'd' WHERE id > 9",
        "DELETE FROM lines WHERE id = 1",
        "SELECT text FROM lines ORDER BY id",
    ]
    with closing(sqlite3.connect(tmp_path / "plain.db")) as plain, ms.begin() as tx:
        cursor = plain.cursor()
        for statement in statements[1:]:
            if statement is statements[1]:
                cursor.execute(statements[0])
                tx.sql(statements[0])
            cursor.execute(statement)
            ours = tx.sql(statement)
            assert (ours.rowcount, ours.lastrowid) == (cursor.rowcount, cursor.lastrowid)
            assert ours.all() == cursor.fetchall()


def test_rows_that_are_returned_are_seen_at_once(ms: millstream.Millstream) -> None:
    with ms.begin() as tx:
        tx.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item)")
        order = tx.sql("INSERT INTO orders (item) VALUES ('pear') RETURNING id, item").one()
        tx.put("jobs", dict(order))
    assert waiting(ms) == [{"id": 1, "item": "pear"}]


def test_a_block_that_only_reads_commits_nothing(ms: millstream.Millstream) -> None:
    before = ms.stats()["sequence"]
    with ms.begin() as tx:
        assert tx.sql("SELECT count(*) FROM stock").scalar() == 2
    with ms.begin():
        pass
    assert ms.stats()["sequence"] == before


def test_statements_without_steps_are_committed(ms: millstream.Millstream, path: Path) -> None:
    with ms.begin() as tx:
        tx.sql("SELECT 1; CREATE TABLE made (n)")
    with ms.begin() as tx, suppress(InvalidInput):
        tx.sql("INSERT OR FAIL INTO stock VALUES ('fig', 1), ('apple', 1)")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM made").fetchone() == (0,)
    assert stock(ms)["fig"] == 1


# Other callers.


def test_other_writers_wait_and_readers_go_on(ms: millstream.Millstream) -> None:
    ms.log("x").append(b"before")
    with ms.begin() as tx:
        tx.sql("UPDATE stock SET n = 0")
        others = [Other(lambda: ms.log("x").append(b"other")) for _ in range(3)]
        beginner = Other(lambda: withdraw(ms))
        reads = Other(lambda: (stock(ms), [record.value for record in ms.log("x").read()]))
        assert reads.finish() == ({"apple": 3, "pear": 5}, [b"before"])
        assert waiting(ms) == []
        assert not any(other.done.is_set() for other in (*others, beginner))
    assert sorted(other.finish() for other in others) == [1, 2, 3]
    assert beginner.finish() == 0


def withdraw(ms: millstream.Millstream) -> int:
    with ms.begin() as tx:
        left: int = tx.sql("SELECT n FROM stock WHERE item = 'apple'").scalar()
        return left


def test_transactions_and_appends_of_many_threads_take_turns(ms: millstream.Millstream) -> None:
    rounds = 25

    def sell() -> None:
        for _ in range(rounds):
            with ms.begin() as tx:
                sold = tx.sql("SELECT n FROM stock WHERE item = 'pear'").scalar()
                tx.sql("UPDATE stock SET n = ? WHERE item = 'pear'", [sold + 1])
                tx.append("sold", sold)

    def append() -> None:
        for number in range(rounds):
            ms.log("x").append(number)

    for other in [Other(call) for call in (sell, append) * 3]:
        assert other.finish() is None
    assert stock(ms)["pear"] == 5 + 3 * rounds
    assert [record.json() for record in ms.log("sold").read()] == list(range(5, 5 + 3 * rounds))
    assert len(list(ms.log("x").read())) == 3 * rounds


def test_a_process_beside_waits_for_the_end(ms: millstream.Millstream, path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as beside, ms.begin() as tx:
        tx.sql("UPDATE stock SET n = 1")
        assert beside.execute("SELECT sum(n) FROM stock").fetchone() == (8,)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            beside.execute("UPDATE stock SET n = 2")


@pytest.mark.parametrize(
    "call",
    [
        lambda ms: ms.log("x").append(b"1"),
        lambda ms: ms.queue("jobs").put(1),
        lambda ms: ms.queue("jobs").put(1, delay=60),
        lambda ms: ms.queue("jobs").claim(1, wait=60),
        lambda ms: ms.begin().__enter__(),
        lambda ms: ms.fold(),
        lambda ms: ms.close(),
    ],
)
def test_a_write_that_would_wait_for_its_own_block_is_refused(
    ms: millstream.Millstream, call: Callable[[millstream.Millstream], object]
) -> None:
    with ms.begin() as tx:
        tx.sql("UPDATE stock SET n = 1")
        with pytest.raises(InvalidInput, match=r"transaction of `ms.begin\(\)` around it"):
            call(ms)
        tx.append("x", b"inside")
    assert stock(ms) == {"apple": 1, "pear": 1}
    assert [record.value for record in ms.log("x").read()] == [b"inside"]


def test_a_put_for_later_follows_the_messages_before_it(ms: millstream.Millstream) -> None:
    queue = ms.create_queue("once", dedup_by="id")
    queue.put(1, dedup="a")
    with ms.begin() as tx:
        tx.put("once", 2, dedup="a", delay=3600)
        tx.put("once", 3, dedup="b", delay=3600)
    assert queue.info().delayed == 1


# Endings that nobody wants.


def test_ctrl_c_rolls_back(ms: millstream.Millstream) -> None:
    asleep = threading.Event()
    with interrupted(lambda over: asleep.wait(PATIENCE_S)), ms.begin() as tx:
        tx.sql("DELETE FROM stock")
        asleep.set()
        threading.Event().wait(PATIENCE_S)
    assert stock(ms) == {"apple": 3, "pear": 5}
    ms.log("x").append(b"goes on")


def test_ctrl_c_ends_a_long_statement(ms: millstream.Millstream) -> None:
    begun = threading.Event()
    with interrupted(lambda over: begun.wait(PATIENCE_S)), ms.begin(timeout=PATIENCE_S) as tx:
        tx.sql("DELETE FROM stock")
        begun.set()
        tx.sql(ENDLESS)
    assert stock(ms) == {"apple": 3, "pear": 5}
    ms.log("x").append(b"goes on")


def test_ctrl_c_ends_the_wait_for_the_turn(ms: millstream.Millstream) -> None:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ms.begin(timeout=PATIENCE_S) as tx:
            tx.sql("DELETE FROM stock")
            begun.set()
            over.wait(PATIENCE_S)

    holder = Other(hold)
    assert begun.wait(PATIENCE_S)
    waits = WriterTurn.begin.__code__

    def until_it_waits(ended: threading.Event) -> None:
        while waits not in code_on_main() and not ended.is_set():
            os.sched_yield()

    with interrupted(until_it_waits), ms.begin():
        pytest.fail("the turn was taken twice")
    over.set()
    assert holder.finish() is None
    with ms.begin() as tx:
        assert tx.sql("SELECT count(*) FROM stock").scalar() == 0


def test_a_write_that_ctrl_c_cut_off_cannot_be_committed(
    ms: millstream.Millstream, path: Path
) -> None:
    endless = ENDLESS.replace("SELECT max(i)", "SELECT i")
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size

    def until_it_writes(ended: threading.Event) -> None:
        """The cache of the statement overflows into the write-ahead log."""
        while log.stat().st_size == size and not ended.is_set():
            os.sched_yield()

    def block() -> None:
        with ms.begin(timeout=PATIENCE_S) as tx:
            tx.sql("DELETE FROM stock")
            with interrupted(until_it_writes):
                tx.sql(f"CREATE TABLE many AS {endless}")
            with pytest.raises(WriteFailed):
                tx.sql("DELETE FROM stock")

    with pytest.raises(WriteFailed, match="begin again"):
        block()
    assert stock(ms) == {"apple": 3, "pear": 5}


def test_a_transaction_that_is_lost_ends_with_its_limit(ms: millstream.Millstream) -> None:
    ms.begin(timeout=SHORT_S).__enter__()
    assert Other(lambda: ms.log("x").append(b"goes on")).finish() == 0


def test_a_block_that_sqlite_ended_is_rolled_back(ms: millstream.Millstream) -> None:
    def block() -> None:
        with ms.begin() as tx:
            tx.sql("UPDATE stock SET n = 1")
            with pytest.raises(WriteFailed, match="ended the transaction"):
                tx.sql("INSERT OR ROLLBACK INTO stock VALUES ('apple', 1)")
            with pytest.raises(WriteFailed, match="begin again"):
                tx.sql("UPDATE stock SET n = 2")

    with pytest.raises(WriteFailed, match="begin again"):
        block()
    assert stock(ms) == {"apple": 3, "pear": 5}
    ms.log("x").append(b"goes on")


def test_a_fork_inside_the_block_ends_it(ms: millstream.Millstream) -> None:
    def block() -> None:
        with ms.begin() as tx:
            tx.sql("DELETE FROM stock")
            child = os.fork()
            if not child:
                try:
                    os._exit(0 if len(stock(ms)) == 2 else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0

    with pytest.raises(TransactionExpired, match="forked"):
        block()
    assert stock(ms) == {"apple": 3, "pear": 5}


def test_a_store_is_closed_after_the_end(path: Path) -> None:
    ms = millstream.open(path)
    prepare(ms)
    with ms.begin() as tx:
        tx.sql("UPDATE stock SET n = 7")
        closing_store = Other(ms.close)
        assert not closing_store.done.wait(SHORT_S)
        tx.put("jobs", 1)
    assert closing_store.finish() is None
    with millstream.open(path) as again:
        assert (stock(again), waiting(again)) == ({"apple": 7, "pear": 7}, [1])
    assert examine(path).healthy


def test_a_signal_without_consequences_changes_nothing(ms: millstream.Millstream) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with ms.begin() as tx:
            signal.raise_signal(signal.SIGUSR1)
            tx.sql("UPDATE stock SET n = 1")
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(heard) == 2
    assert stock(ms) == {"apple": 1, "pear": 1}


# What is refused.


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("BEGIN", "the end of the block commits"),
        ("BEGIN IMMEDIATE", "the end of the block commits"),
        ("COMMIT", "the end of the block commits"),
        ("ROLLBACK", "the end of the block commits"),
        ("SELECT 1; COMMIT", "the end of the block commits"),
        ("SAVEPOINT mine", "tx.savepoint"),
        ("ATTACH ':memory:' AS other", "other databases"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA"),
        ("DELETE FROM millstream_delta", "is Millstream's"),
        ("SELECT * FROM millstream_record", "is Millstream's"),
        ("CREATE TABLE millstream_mine (n)", "is Millstream's"),
        ("no sql at all", "syntax error"),
        ("VACUUM", "VACUUM"),
    ],
)
def test_a_statement_that_would_break_the_turn_is_refused(
    ms: millstream.Millstream, statement: str, reason: str
) -> None:
    ms.log("x").append(b"our own statements are prepared")
    with ms.begin() as tx:
        for _ in range(2):
            with pytest.raises(InvalidInput, match=reason):
                tx.sql(statement)
        tx.sql("UPDATE stock SET n = 1")
    assert stock(ms) == {"apple": 1, "pear": 1}
    ms.log("x").append(b"goes on")


def test_a_message_may_be_posted_by_sql_as_well(ms: millstream.Millstream) -> None:
    with ms.begin() as tx:
        tx.sql("INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', '1')")
    (message,) = ms.queue("jobs").claim(1, wait=PATIENCE_S)
    assert message.json() == 1


def test_a_store_without_tables_refuses() -> None:
    with millstream.open(":memory:") as ms, pytest.raises(InvalidInput, match=r"ms\.begin needs"):
        ms.begin().__enter__()


@pytest.mark.parametrize("name", SURFACES)
def test_a_store_that_is_opened_to_be_read_refuses(name: str, path: Path) -> None:
    millstream.open(path).close()
    refused = pytest.raises(CannotOpen, match="mode='r'")
    with surface_of(name) as surface, surface.open(path, mode="r") as ms, refused:
        ms.begin().__enter__()


def test_sql_uses_full_text_and_r_tree_tables(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "texts.db") as ms:
        with ms.transaction() as tx:
            tx.sql("CREATE VIRTUAL TABLE texts USING fts5(text)")
            tx.sql("INSERT INTO texts VALUES ('a grey mill'), ('a stream')")
            tx.sql("CREATE VIRTUAL TABLE boxes USING rtree(id, low, high)")
            tx.sql("INSERT INTO boxes VALUES (1, 0, 1), (2, 5, 6)")
        with ms.begin() as block:
            block.sql("UPDATE texts SET text = 'a blue mill' WHERE text MATCH 'grey'")
            boxes = block.sql("SELECT id FROM boxes WHERE low < 3").rows
        assert boxes == [(1,)]
        found = ms.sql("SELECT text FROM texts WHERE texts MATCH 'mill'").rows
        assert found == [("a blue mill",)]
        with pytest.raises(InvalidInput, match="PRAGMA"), ms.transaction() as tx:
            tx.sql("PRAGMA page_size = 512")
