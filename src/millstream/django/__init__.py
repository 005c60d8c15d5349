"""Messages from Django: `put` and `append` take part in the current transaction of a database.

    with transaction.atomic():
        customer = Customer.objects.create(name="Ada")
        put("welcome", {"id": customer.pk})

The message exists if and only if the transaction is committed. The call inserts a row into the table
`millstream_inbox`, and every process that has the store open moves such rows into their queue
(`embedded/sql_inbox.py`). `millstream adopt db.sqlite3` makes the tables. With `"millstream.django"`
in `INSTALLED_APPS`, `manage.py migrate` makes the inbox too, also in the databases of tests.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connections
from django.db.utils import OperationalError

from millstream.engine.sqlite.schema import INBOX
from millstream.header import HeadersLike
from millstream.record import Seconds
from millstream.sql.posts import (
    NO_TABLE,
    POST_COLUMNS,
    InboxPost,
    message_post,
    not_adopted,
    not_sqlite,
    record_post,
)

__all__ = ["append", "put"]

_INSERT = (
    f"INSERT INTO {INBOX} ({', '.join(POST_COLUMNS)}) "
    f"VALUES ({', '.join(['%s'] * len(POST_COLUMNS))})"
)


def put(
    queue: str,
    value: Any,
    *,
    using: str = "default",
    key: bytes | str | None = None,
    headers: HeadersLike | None = None,
    priority: int | None = None,
    group: str | None = None,
    dedup: str | None = None,
    delay: Seconds | None = None,
    deliver_at: datetime | int | None = None,
) -> None:
    """Put a message into a queue, in the current transaction of the database `using`.

    The other arguments mean the same as in `Queue.put`; `deliver_at` is a time with a time zone. Invalid
    arguments raise `InvalidInput` here. A queue that does not exist is found later: the row goes to
    `millstream_inbox_failed`. Outside of `atomic` the message is committed at once.
    """
    post = message_post(
        queue,
        value,
        key=key,
        headers=headers,
        priority=priority,
        group=group,
        dedup=dedup,
        delay=delay,
        deliver_at=deliver_at,
    )
    _insert(post, using)


def append(
    log: str,
    value: Any,
    *,
    using: str = "default",
    key: bytes | str | None = None,
    headers: HeadersLike | None = None,
) -> None:
    """Append a record to a log, in the current transaction of the database `using`."""
    _insert(record_post(log, value, key=key, headers=headers), using)


def _insert(post: InboxPost, using: str) -> None:
    connection = connections[using]
    if connection.vendor != "sqlite":
        raise not_sqlite(f"the database {using!r}", connection.vendor)
    try:
        with connection.cursor() as cursor:
            cursor.execute(_INSERT, post)
    except OperationalError as error:
        if NO_TABLE in str(error):
            path = str(connection.settings_dict["NAME"])
            raise not_adopted(f"the database {using!r}", path) from error
        raise
