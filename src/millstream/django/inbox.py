"""Rows of the SQL inbox, inserted in a transaction of Django."""

from __future__ import annotations

from django.db import connections
from django.db.utils import OperationalError

from millstream.engine.sqlite.schema import INBOX
from millstream.sql.posts import NO_TABLE, POST_COLUMNS, InboxPost, not_adopted, not_sqlite

_INSERT = (
    f"INSERT INTO {INBOX} ({', '.join(POST_COLUMNS)}) "
    f"VALUES ({', '.join(['%s'] * len(POST_COLUMNS))})"
)


def insert_post(post: InboxPost, using: str) -> None:
    """Insert a row of the inbox, in the current transaction of the database `using`."""
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
