"""Messages from SQLAlchemy: `put` and `append` take part in the transaction of a session.

    with Session(engine) as session, session.begin():
        session.add(Customer(name="Ada"))
        put(session, "welcome", {"name": "Ada"})

The message exists if and only if the transaction is committed. The call inserts a row into the table
`millstream_inbox`, and every process that has the store open moves such rows into their queue
(`embedded/sql_inbox.py`). With an `AsyncSession` or `AsyncConnection` the call is awaited.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Unpack, overload

from sqlalchemy import Connection, column, insert, table, text
from sqlalchemy.exc import OperationalError, UnboundExecutionError
from sqlalchemy.orm import Session

from millstream.engine.sqlite.schema import INBOX, INBOX_TABLES, PREFIX
from millstream.errors import InvalidInput
from millstream.sql.posts import (
    NO_TABLE,
    POST_COLUMNS,
    InboxPost,
    MessageOptions,
    RecordOptions,
    message_post,
    not_adopted,
    not_sqlite,
    record_post,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import scoped_session

    Blocking = Session | scoped_session[Any] | Connection
    Awaited = AsyncSession | async_scoped_session[Any] | AsyncConnection

__all__ = ["append", "create_inbox", "include_name", "put"]

_INSERT = insert(table(INBOX, *map(column, POST_COLUMNS)))


@overload
def put(session: Blocking, queue: str, value: Any, **options: Unpack[MessageOptions]) -> None: ...
@overload
def put(
    session: Awaited, queue: str, value: Any, **options: Unpack[MessageOptions]
) -> Coroutine[Any, Any, None]: ...
def put(
    session: Blocking | Awaited, queue: str, value: Any, **options: Unpack[MessageOptions]
) -> Coroutine[Any, Any, None] | None:
    """Put a message into a queue, in the transaction of a session or connection.

    The options `key`, `headers`, `priority`, `group`, `dedup` and `delay` mean the same as in
    `Queue.put`; `deliver_at` is a time with a time zone. Invalid arguments raise `InvalidInput` here. A
    queue that does not exist is found later: the row goes to `millstream_inbox_failed`. A session that
    is bound to several databases: hand in `session.connection(bind_arguments=...)`.
    """
    return _run(session, message_post(queue, value, **options))


@overload
def append(session: Blocking, log: str, value: Any, **options: Unpack[RecordOptions]) -> None: ...
@overload
def append(
    session: Awaited, log: str, value: Any, **options: Unpack[RecordOptions]
) -> Coroutine[Any, Any, None]: ...
def append(
    session: Blocking | Awaited, log: str, value: Any, **options: Unpack[RecordOptions]
) -> Coroutine[Any, Any, None] | None:
    """Append a record to a log, in the transaction of a session or connection.

    The options `key` and `headers` mean the same as in `Log.append`.
    """
    return _run(session, record_post(log, value, **options))


def create_inbox(connection: Connection) -> None:
    """Create the tables of the inbox, for a database that becomes a store later.

    For tests in memory, and for migrations: rows wait there until a process opens the store.
    """
    for statement in INBOX_TABLES.values():
        connection.execute(text(statement))


def include_name(name: str | None, kind: str, _parents: Any) -> bool:
    """Return whether Alembic compares a name: it must not drop Millstream's tables.

    Hand it to Alembic as `context.configure(..., include_name=include_name)`.
    """
    return not (kind == "table" and name is not None and name.startswith(PREFIX))


def _run(session: Any, post: InboxPost) -> Coroutine[Any, Any, None] | None:
    if hasattr(session, "session_factory"):  # a scoped session gives the session of the scope
        session = session()
    if isinstance(session, Session | Connection):
        _insert(session, post)
        return None
    if hasattr(session, "run_sync"):
        coroutine: Coroutine[Any, Any, None] = session.run_sync(_insert, post)
        return coroutine
    raise InvalidInput(
        "a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy is needed, not "
        f"{type(session).__name__}"
    )


def _insert(session: Blocking, post: InboxPost) -> None:
    try:
        bind = session if isinstance(session, Connection) else session.get_bind()
    except UnboundExecutionError as error:
        raise InvalidInput(
            "the session is bound to no database, or to several, and a message belongs to one: hand in "
            "session.connection(bind_arguments={'mapper': ...}) instead of the session"
        ) from error
    url = bind.engine.url
    if bind.dialect.name != "sqlite":
        raise not_sqlite(url.render_as_string(hide_password=True), bind.dialect.name)
    try:
        session.execute(_INSERT, post._asdict())
    except OperationalError as error:
        if NO_TABLE in str(error.orig):
            path = url.database or ":memory:"
            raise not_adopted(path, path) from error
        raise
