"""Any SQLite connection puts messages by an INSERT into `millstream_inbox`, in its own transaction."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.embedded import sql_inbox
from millstream.embedded.sql_inbox import SqlInbox
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.queue.model.own_logs import inbox_of
from millstream.testing import Probe

PATIENCE_S = 60.0
"""How long a test waits before it fails; posts are moved within milliseconds."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def ms(path: Path) -> Iterator[millstream.Millstream]:
    with millstream.open(path) as store:
        store.create_queue("jobs")
        yield store


@pytest.fixture
def app(ms: millstream.Millstream, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of the application, without autocommit."""
    with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as connection:
        yield connection


def post(app: sqlite3.Connection, **columns: Any) -> None:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    app.execute(f"INSERT INTO millstream_inbox ({names}) VALUES ({marks})", tuple(columns.values()))
    app.commit()


def await_moved(app: sqlite3.Connection) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while app.execute("SELECT count(*) FROM millstream_inbox").fetchone() != (0,):
        app.commit()
        assert time.monotonic() < until_s, "posts were not moved"
        time.sleep(0.005)
    app.commit()


def failed(app: sqlite3.Connection) -> list[Any]:
    await_moved(app)
    return app.execute("SELECT queue, log, value, reason FROM millstream_inbox_failed").fetchall()


def claim(ms: millstream.Millstream, n: int, queue: str = "jobs") -> list[millstream.Message]:
    messages: list[millstream.Message] = []
    while len(messages) < n:
        more = ms.queue(queue).claim(n - len(messages), wait=PATIENCE_S)
        assert more, "no message came"
        messages += more
    return messages


def test_a_post_becomes_a_message(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    post(app, queue="jobs", value='{"n": 1}', headers='{"colour": "blue", "n": 2}', key="k")
    (message,) = claim(ms, 1)
    assert message.json() == {"n": 1}
    assert dict(message.headers) == {"colour": "blue", "n": 2}
    assert message.key == b"k"
    await_moved(app)


def test_a_post_becomes_a_record_of_a_log(
    ms: millstream.Millstream, app: sqlite3.Connection
) -> None:
    post(app, log="events", value='{"n": 1}', headers='{"colour": "blue"}', key=7)
    await_moved(app)
    (record,) = ms.log("events").read()
    assert (record.value, record.key, dict(record.headers)) == (
        b'{"n": 1}',
        b"7",
        {"colour": "blue"},
    )


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ('{"n": 1}', b'{"n": 1}'),
        ('"Zoë 🦊"', '"Zoë 🦊"'.encode()),
        ("null", b"null"),
        (b"\x00\xff", b"\x00\xff"),
        (b"", b""),
        (7, b"7"),
        (2.5, b"2.5"),
    ],
)
def test_kinds_of_values(
    ms: millstream.Millstream, app: sqlite3.Connection, value: Any, stored: bytes
) -> None:
    post(app, queue="jobs", value=value)
    (message,) = claim(ms, 1)
    assert message.value == stored


def test_posts_of_one_transaction_come_together_or_not_at_all(
    ms: millstream.Millstream, app: sqlite3.Connection
) -> None:
    app.execute("CREATE TABLE orders (id)")
    app.execute("INSERT INTO orders VALUES (1)")
    app.execute("INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', '1')")
    app.rollback()
    app.execute("INSERT INTO orders VALUES (2)")
    app.executemany(
        "INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', ?)", [(n,) for n in range(200)]
    )
    app.commit()
    assert [message.json() for message in claim(ms, 200)] == list(range(200))


def test_a_trigger_posts(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    app.executescript(
        """
        CREATE TABLE orders (id INTEGER PRIMARY KEY, total);
        CREATE TRIGGER posted AFTER INSERT ON orders BEGIN
            INSERT INTO millstream_inbox (queue, key, value)
            VALUES ('jobs', new.id, json_object('order', new.id, 'total', new.total));
        END;
        INSERT INTO orders VALUES (5, 9.5);
        """
    )
    (message,) = claim(ms, 1)
    assert (message.key, message.json()) == (b"5", {"order": 5, "total": 9.5})


@pytest.mark.parametrize(
    "expression",
    [
        "unixepoch('now', '+1 hour')",
        "unixepoch('now', '+1 hour') * 1000",
        "datetime('now', '+1 hour')",
        "strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '+1 hour')",
    ],
)
def test_a_time_delays_a_message(
    ms: millstream.Millstream, app: sqlite3.Connection, expression: str
) -> None:
    app.execute(
        f"INSERT INTO millstream_inbox (queue, value, deliver_at) VALUES ('jobs', '1', {expression})"
    )
    app.commit()
    await_moved(app)
    assert ms.queue("jobs").info().delayed == 1
    assert not ms.queue("jobs").claim(1)


def test_a_time_in_the_past_is_now(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    post(app, queue="jobs", value="1", deliver_at=5)
    assert claim(ms, 1)


def test_groups_priorities_and_dedup(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    ms.create_queue("sorted", group_by="customer", priority_by="urgency", dedup_by="order")
    app.executemany(
        "INSERT INTO millstream_inbox (queue, value, message_group, priority, dedup) "
        "VALUES ('sorted', ?, ?, ?, ?)",
        [(1, "ada", 0, "a"), (2, "bob", 9, "b"), (3, "bob", 9, "b")],
    )
    app.commit()
    await_moved(app)
    messages = claim(ms, 2, "sorted")
    assert [message.json() for message in messages] == [2, 1]
    ms.queue("sorted").ack(messages)
    assert not ms.queue("sorted").claim(1)
    assert ms.queue("sorted").info().duplicates == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"queue": "missing", "value": "1"}, "there is no queue 'missing'"),
        ({"value": "1"}, "either a queue or a log"),
        ({"queue": "jobs", "log": "events", "value": "1"}, "either a queue or a log"),
        ({"queue": "jobs", "value": "plain text"}, "not valid JSON"),
        ({"queue": "jobs", "value": "[" * 10_000 + "]" * 10_000}, "recursion depth"),
        ({"queue": "jobs", "value": None}, "NULL"),
        ({"queue": "jobs", "value": float("inf")}, "only finite numbers"),
        ({"queue": "jobs", "value": "1", "headers": "[]"}, "JSON object"),
        ({"queue": "jobs", "value": "1", "headers": "{"}, "JSON object"),
        ({"queue": "jobs", "value": "1", "headers": '{"a": {}}'}, "JSON object"),
        ({"queue": "jobs", "value": "1", "key": 1.5}, "key is text"),
        ({"queue": "jobs", "value": "1", "deliver_at": "soon"}, "deliver_at is"),
        ({"queue": "jobs", "value": "1", "deliver_at": b"x"}, "deliver_at is"),
        ({"queue": "jobs", "value": "1", "priority": "high"}, "priority"),
        ({"log": "events", "value": "1", "deliver_at": 5}, "for a queue"),
        ({"log": "events", "value": "1", "message_group": "a"}, "for a queue"),
        ({"queue": "", "value": "1"}, "name"),
        ({"queue": 7, "value": "1"}, "queue"),
        ({"log": "a\nb", "value": "1"}, "name"),
        ({"log": inbox_of("missing"), "value": "1"}, "no queue 'missing'"),
    ],
)
def test_a_bad_post_fails_alone(
    ms: millstream.Millstream, app: sqlite3.Connection, columns: dict[str, Any], reason: str
) -> None:
    post(app, queue="jobs", value="1")
    post(app, **columns)
    post(app, queue="jobs", value="2")
    assert [message.json() for message in claim(ms, 2)] == [1, 2]
    ((*_, said),) = failed(app)
    assert reason in said


@pytest.mark.parametrize("column", ["queue", "value", "headers", "key", "deliver_at", "dedup"])
def test_a_text_that_is_not_unicode_fails_alone(
    ms: millstream.Millstream, app: sqlite3.Connection, column: str
) -> None:
    columns = {"queue": "'jobs'", "value": "'1'", column: "CAST(x'ff' AS TEXT)"}
    app.executescript(
        f"""
        BEGIN;
        INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', 1);
        INSERT INTO millstream_inbox ({", ".join(columns)}) VALUES ({", ".join(columns.values())});
        INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', 2);
        COMMIT;
        """
    )
    assert [message.json() for message in claim(ms, 2)] == [1, 2]
    await_moved(app)
    stored = f"SELECT hex({column}), reason FROM millstream_inbox_failed"
    ((text, reason),) = app.execute(stored).fetchall()
    assert text == "FF"
    assert "not UTF-8" in reason


@pytest.mark.parametrize("number", [-(2**63), 0, 2**63 - 1])
def test_a_row_may_have_any_id(
    ms: millstream.Millstream, app: sqlite3.Connection, number: int
) -> None:
    post(app, id=number, queue="jobs", value="1")
    assert claim(ms, 1)


def test_posts_for_a_log_that_is_staged_hold_back_no_other_posts(
    ms: millstream.Millstream, app: sqlite3.Connection
) -> None:
    with ms.log("events").stage() as stage:
        stage.append(b"staged")
        post(app, log="events", value="1")
        post(app, queue="jobs", value="2")
        assert [message.json() for message in claim(ms, 1)] == [2]
        assert app.execute("SELECT log FROM millstream_inbox").fetchall() == [("events",)]
    await_moved(app)
    assert [record.value for record in ms.log("events").read()] == [b"staged", b"1"]


def test_posts_for_a_damaged_queue_hold_back_no_other_posts(path: Path) -> None:
    with millstream.open(path) as ms:
        ms.create_queue("damaged")
        ms.create_queue("jobs")
        ms.fold()
        ms.log("events").append(b"1")  # the newest commit stays unfolded
        ms.fold()
        Probe(ms).damage(keys.queue("damaged"))
    with millstream.open(path) as ms, closing(sqlite3.connect(path)) as app:
        app.execute(
            "INSERT INTO millstream_inbox (queue, value) VALUES ('damaged', 1), ('jobs', 2)"
        )
        app.commit()
        assert [message.json() for message in claim(ms, 1)] == [2]
        assert app.execute("SELECT queue FROM millstream_inbox").fetchall() == [("damaged",)]


def test_bad_posts_between_good_ones_of_one_transaction(
    ms: millstream.Millstream, app: sqlite3.Connection
) -> None:
    app.executemany(
        "INSERT INTO millstream_inbox (queue, value) VALUES (?, ?)",
        [("missing" if n % 7 == 3 else "jobs", "{" if n % 5 == 2 else n) for n in range(100)],
    )
    app.commit()
    bad = {n for n in range(100) if n % 7 == 3 or n % 5 == 2}
    assert len(failed(app)) == len(bad)
    good = [n for n in range(100) if n not in bad]
    assert [message.json() for message in claim(ms, len(good))] == good


def test_a_failed_post_is_posted_again(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    post(app, queue="later", value="1")
    assert len(failed(app)) == 1
    ms.create_queue("later")
    app.execute(
        "INSERT INTO millstream_inbox (queue, value) SELECT queue, value FROM millstream_inbox_failed"
    )
    app.execute("DELETE FROM millstream_inbox_failed")
    app.commit()
    assert claim(ms, 1, "later")


@pytest.mark.parametrize(("first", "second"), [("1", "2"), ("1", "no JSON"), ("no JSON", "2")])
def test_a_row_with_the_id_of_a_moved_row_is_moved_itself(
    ms: millstream.Millstream,
    app: sqlite3.Connection,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
) -> None:
    ids: list[Any] = []
    raced = threading.Event()

    def planned(posts: Any, limits: Any) -> Any:
        plan = sound_planned(posts, limits)
        if not ids:
            ids.append(posts[0][:1])
            SqlInbox().move(Probe(ms).store)  # as another process does
            with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as other:
                post(other, queue="jobs", value=second)
                ids.append(other.execute("SELECT id FROM millstream_inbox").fetchone())
            raced.set()
        return plan

    sound_planned = sql_inbox.planned
    monkeypatch.setattr(sql_inbox, "planned", planned)
    post(app, queue="jobs", value=first)
    assert raced.wait(PATIENCE_S)
    refused = [value for _, _, value, _ in failed(app)]
    moved = [message.text for message in ms.queue("jobs").claim(10)]
    assert ids[0] == ids[1]
    assert moved == [value for value in (first, second) if value != "no JSON"]
    assert refused == [value for value in (first, second) if value == "no JSON"]


def test_posts_wait_for_the_next_handle(path: Path) -> None:
    with millstream.open(path) as ms:
        ms.create_queue("jobs")
    with closing(sqlite3.connect(path)) as app:
        post(app, queue="jobs", value="1")
    with millstream.open(path, mode="r"), closing(sqlite3.connect(path)) as app:
        assert app.execute("SELECT count(*) FROM millstream_inbox").fetchone() == (1,)
    with millstream.open(path) as ms:
        assert claim(ms, 1)


def test_a_transaction_of_the_store_posts_and_reads(ms: millstream.Millstream) -> None:
    with ms.transaction() as tx:
        tx.sql("INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', '1')")
    assert claim(ms, 1)
    assert ms.sql("SELECT * FROM millstream_inbox_failed").rows == []
    for statement in ("DROP TABLE millstream_inbox", "DELETE FROM millstream_record"):
        with pytest.raises(InvalidInput), ms.transaction() as tx:
            tx.sql(statement)


def test_a_dropped_table_comes_back(path: Path) -> None:
    with millstream.open(path) as ms, closing(sqlite3.connect(path)) as app:
        ms.create_queue("jobs")
        app.execute("DROP TABLE millstream_inbox")
        ms.queue("jobs").put(1)
        assert claim(ms, 1)
    with millstream.open(path) as ms, closing(sqlite3.connect(path)) as app:
        post(app, queue="jobs", value="2")
        assert claim(ms, 1)


def test_large_posts(ms: millstream.Millstream, app: sqlite3.Connection) -> None:
    for _ in range(5):
        app.execute(
            "INSERT INTO millstream_inbox (queue, value) VALUES ('jobs', zeroblob(5000000))"
        )
    app.commit()
    assert [len(message.value) for message in claim(ms, 5)] == [5_000_000] * 5


def test_a_message_for_later_does_not_hold_back_earlier_messages_of_its_group(
    ms: millstream.Millstream, app: sqlite3.Connection
) -> None:
    ms.create_queue("grouped", group_by="g")
    with app:
        app.execute(
            "INSERT INTO millstream_inbox (queue, value, message_group, deliver_at) VALUES "
            "('grouped', '1', 'a', NULL), ('grouped', '2', 'a', '2100-01-01'), ('none', '3', NULL, NULL)"
        )
    (message,) = claim(ms, 1, "grouped")
    assert message.json() == 1
    assert len(failed(app)) == 1
    info = ms.queue("grouped").info()
    assert info is not None
    assert info.delayed == 1
