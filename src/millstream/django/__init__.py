"""Messages from Django: `put` and `append` take part in the current transaction of a database.

    with transaction.atomic():
        customer = Customer.objects.create(name="Ada")
        put("welcome", {"id": customer.pk})

The message exists if and only if the transaction is committed. The call inserts a row into the table
`millstream_inbox`, and every process that has the store open moves such rows into their queue
(`embedded/sql_inbox.py`). `millstream adopt db.sqlite3` makes the tables. With `"millstream.django"`
in `INSTALLED_APPS`, `manage.py migrate` makes the inbox too, also in the databases of tests.

`MillstreamBackend` is a backend of Django's tasks framework (docs/DJANGO.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from millstream.django.inbox import insert_post
from millstream.sql.posts import MessageOptions, RecordOptions, message_post, record_post

if TYPE_CHECKING:
    from millstream.django.backend import MillstreamBackend as MillstreamBackend

__all__ = ["append", "put"]


def __getattr__(name: str) -> Any:
    """`MillstreamBackend`, once it is asked for: other projects need no tasks framework."""
    if name == "MillstreamBackend":
        from millstream.django.backend import MillstreamBackend

        return MillstreamBackend
    raise AttributeError(f"module 'millstream.django' has no attribute {name!r}")


def put(
    queue: str, value: Any, *, using: str = "default", **options: Unpack[MessageOptions]
) -> None:
    """Put a message into a queue, in the current transaction of the database `using`.

    The options `key`, `headers`, `priority`, `group`, `dedup` and `delay` mean the same as in
    `Queue.put`; `deliver_at` is a time with a time zone. Invalid arguments raise `InvalidInput` here. A
    queue that does not exist is found later: the row goes to `millstream_inbox_failed`. Outside of
    `atomic` the message is committed at once.
    """
    insert_post(message_post(queue, value, **options), using)


def append(
    log: str, value: Any, *, using: str = "default", **options: Unpack[RecordOptions]
) -> None:
    """Append a record to a log, in the current transaction of the database `using`.

    The options `key` and `headers` mean the same as in `Log.append`.
    """
    insert_post(record_post(log, value, **options), using)
