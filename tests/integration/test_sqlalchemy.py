"""Messages that SQLAlchemy puts in its own transaction: delivered exactly once, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import millstream
from millstream.errors import CannotOpen, InvalidInput
from millstream.sqlalchemy import append, create_inbox, include_name, put
from tests.integration.inbox_reader import InboxReader, inbox_reader

pytestmark = pytest.mark.timeout(120)


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def reader(path: Path) -> Iterator[InboxReader]:
    with inbox_reader(path) as running:
        yield running


@pytest.fixture
def engine(path: Path, reader: InboxReader) -> Iterator[Engine]:
    """The application's engine; a Millstream process has the same file open."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def await_moved(engine: Engine) -> None:
    """Wait until the inbox is empty."""
    while True:
        with engine.connect() as connection:
            if not connection.scalar(text("SELECT count(*) FROM millstream_inbox")):
                return
        threading.Event().wait(0.005)


def test_a_commit_delivers_once_and_in_order(engine: Engine, reader: InboxReader) -> None:
    for first in range(0, 60, 20):
        with Session(engine) as session, session.begin():
            for number in range(first, first + 20):
                session.add(Customer(name=f"c{number}"))
                put(session, "emails", {"n": number}, key=f"k{number}", headers={"a": 1})
    assert reader.values(60) == [{"n": number} for number in range(60)]
    with Session(engine) as session, session.begin():
        put(session, "emails", "last", key=b"k", headers={"a": 1})
    assert reader.next() == ("last", "k", {"a": 1, "content-type": "text/plain; charset=utf-8"})
    with Session(engine) as session:
        assert session.query(Customer).count() == 60
        assert session.scalar(text("SELECT count(*) FROM millstream_inbox_failed")) == 0


def test_a_rollback_delivers_nothing(engine: Engine, reader: InboxReader) -> None:
    with Session(engine) as session:
        session.add(Customer(name="gone"))
        put(session, "emails", "gone")
        session.flush()
        session.rollback()
    with Session(engine) as session:
        put(session, "emails", "never committed")
    with Session(engine) as session, session.begin():
        put(session, "emails", {"n": 1})
        savepoint = session.begin_nested()
        put(session, "emails", "rolled back to a savepoint")
        savepoint.rollback()
        put(session, "emails", {"n": 2})
    assert reader.values(2) == [{"n": 1}, {"n": 2}]
    with Session(engine) as session:
        assert session.query(Customer).count() == 0


def test_every_kind_of_session_takes_part(engine: Engine, path: Path, reader: InboxReader) -> None:
    with engine.begin() as connection:
        put(connection, "emails", {"by": "connection"})
    scoped = scoped_session(sessionmaker(engine))
    put(scoped, "emails", {"by": "scoped session"})
    scoped.commit()
    scoped.remove()
    with Session(engine) as session, session.begin():
        put(session.connection(), "emails", {"by": "connection of a session"})

    async def by_coroutines() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        async with AsyncSession(engine) as session, session.begin():
            session.add(Customer(name="async"))
            await put(session, "emails", {"by": "async session"})
        async with AsyncSession(engine) as session:
            await put(session, "emails", "rolled back")
            await session.rollback()
        async with engine.begin() as connection:
            await put(connection, "emails", {"by": "async connection"})
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await put(scoped, "emails", {"by": "async scoped session"})
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()

    asyncio.run(by_coroutines())
    assert [value["by"] for value in reader.values(6)] == [
        "connection",
        "scoped session",
        "connection of a session",
        "async session",
        "async connection",
        "async scoped session",
    ]


def test_threads_put_at_once_and_each_keeps_its_order(engine: Engine, reader: InboxReader) -> None:
    def work(writer: int) -> None:
        for number in range(15):
            with Session(engine) as session, session.begin():
                put(session, "emails", [writer, number])

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = reader.values(45)
    for writer in range(3):
        assert [number for by, number in values if by == writer] == list(range(15))


def test_a_message_is_the_one_that_a_queue_would_make(engine: Engine, path: Path) -> None:
    values: list[Any] = [{"ä": [1, None]}, "text 🦊", b"\x00\xff", b"{}", 7, [], "", True]
    with millstream.open(path) as ms:
        ms.create_queue("ours")
        ms.create_queue("posted", priority_by="p", group_by="g", dedup_by="d")
        later = datetime(2100, 1, 1, tzinfo=UTC)
        with Session(engine) as session, session.begin():
            for value in values:
                put(session, "ours", value, key="k", headers={"h": 1.5, "n": None})
                append(session, "log", value, key=b"\xff", headers={"content-type": "mine"})
            put(session, "posted", "x", priority=5, group="grp", dedup="id")
            put(session, "posted", "x", priority=5, group="g2", dedup="later", deliver_at=later)
            put(session, "posted", "x", priority=5, group="g3", dedup="delayed", delay=3600)
        claimed: list[millstream.Message] = []
        while len(claimed) < len(values):
            claimed += ms.queue("ours").claim(20, wait=60)
        expected = ms.create_queue("expected")
        for value in values:
            expected.put(value, key="k", headers={"h": 1.5, "n": None})
        for mine, other in zip(claimed, expected.claim(20), strict=True):
            assert (mine.value, mine.key, mine.headers) == (other.value, other.key, other.headers)
        records = list(ms.log("log").read())
        assert [record.value for record in records] == [message.value for message in claimed]
        assert {record.headers["content-type"] for record in records} == {"mine"}
        await_moved(engine)
        (message,) = ms.queue("posted").claim(5, wait=60)
        assert dict(message.headers).items() >= {"p": 5, "g": "grp", "d": "id"}.items()
        info = ms.queue("posted").info()
        assert info is not None
        assert (info.delayed, info.available, info.in_flight) == (2, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"queue": ""}, "a queue name has 1 to"),
        ({"queue": 7}, "a queue name is text"),
        ({"value": None}, "a post has a value"),
        ({"value": object()}, "a value is bytes, text or JSON"),
        ({"value": float("nan")}, "no NaN"),
        ({"value": b"x" * 70_000_000}, "a value"),
        ({"key": 7}, "a key is bytes or text"),
        ({"headers": {"a": b"\xff"}}, "object of JSON"),
        ({"headers": {"a": float("inf")}}, "object of JSON"),
        ({"headers": [("a", 1), ("a", 2)]}, "must not repeat"),
        ({"headers": {"a": [1]}}, "header"),
        ({"priority": -1}, "a priority is"),
        ({"group": 7}, "group is text"),
        ({"deliver_at": datetime(2100, 1, 1)}, "needs a time zone"),
        ({"deliver_at": "tomorrow"}, "deliver_at is a whole number"),
        ({"delay": -1}, "delay in ms is a whole number"),
        ({"delay": 1, "deliver_at": 1}, "not both"),
    ],
)
def test_invalid_arguments_are_refused_at_the_call(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        create_inbox(connection)
    with Session(engine) as session:
        with pytest.raises(InvalidInput, match=problem):
            put(session, **{"queue": "emails", "value": "x", **arguments})
        assert session.scalar(text("SELECT count(*) FROM millstream_inbox")) == 0
    engine.dispose()


def test_a_database_without_an_inbox_says_what_to_do(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    with Session(engine) as session:
        with pytest.raises(CannotOpen, match=r"`millstream adopt .*app\.db`"):
            put(session, "emails", "x")
        with pytest.raises(CannotOpen, match="millstream adopt"):
            append(session, "log", "x")
    engine.dispose()
    with pytest.raises(InvalidInput, match="not Engine"):
        put(engine, "emails", "x")  # type: ignore[call-overload]


def test_a_session_of_two_databases_names_the_database_of_a_message(
    engine: Engine, reader: InboxReader
) -> None:
    with Session(binds={Customer: engine}) as session, session.begin():
        session.add(Customer(name="Ada"))
        with pytest.raises(InvalidInput, match=r"hand in session\.connection\(bind_arguments"):
            put(session, "emails", "x")
        put(session.connection(bind_arguments={"mapper": Customer}), "emails", {"n": 1})
    assert reader.values(1) == [{"n": 1}]


def test_rows_wait_in_an_inbox_until_a_store_opens_the_database(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        create_inbox(connection)
        append(connection, "events", {"n": 1})
    engine.dispose()
    with millstream.open(path, adopt=True) as ms:
        assert ms.log("events").wait(0, timeout=60)
        assert [record.json() for record in ms.log("events").read()] == [{"n": 1}]


def test_a_store_in_the_same_process_takes_part(path: Path) -> None:
    from millstream.engine.sqlite.neighbour import has_shared_locks

    if not has_shared_locks:
        pytest.skip("this system has no locks of open files")
    with closing(millstream.open(path)) as ms:
        queue = ms.create_queue("emails")
        engine = create_engine(f"sqlite:///{path}")
        for number in range(10):
            with Session(engine) as session, session.begin():
                put(session, "emails", number)
        engine.dispose()
        values: list[Any] = []
        while len(values) < 10:
            values += [message.json() for message in queue.pop(10, wait=60)]
        assert values == list(range(10))


def test_alembic_leaves_the_tables_alone() -> None:
    assert not include_name("millstream_inbox", "table", {})
    assert include_name("customers", "table", {})
    assert include_name("millstream_index", "index", {})
    assert include_name(None, "schema", {})
