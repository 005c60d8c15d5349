"""The outbox: jobs from a PostgreSQL database, exactly once, with SQLAlchemy.

An application inserts a row into the table `outbox` in its own transaction. The relay puts a job for
each row and deletes the row afterwards. If the relay dies between the two, it puts the job again, and
the task is unique by the id of the row: the queue drops the repeat. Any number of relays may run.

    python examples/outbox.py postgresql+psycopg://localhost/shop
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    insert,
    select,
)

from millstream import Jobs

jobs = Jobs(os.environ.get("SHOP_STORE", "jobs.db"))
tables = MetaData()
outbox = Table(
    "outbox",
    tables,
    Column("id", Integer, primary_key=True),
    Column("task", Text, nullable=False),
    Column("arguments", JSON, nullable=False),
)


@jobs.task(unique_for=timedelta(days=7), unique_by="outbox_id")
def send_mail(outbox_id: int, address: str) -> str:
    """Send a mail. A row of the outbox is put at most once within seven days."""
    return f"sent to {address}"


TASKS = {"send_mail": send_mail}


def post(connection: Connection, task: str, **arguments: Any) -> None:
    """Insert a row, in the transaction of the caller."""
    connection.execute(insert(outbox).values(task=task, arguments=arguments))


def relay(engine: Engine, *, limit: int = 100) -> int:
    """Move the next rows into the queue; return their number.

    The rows are locked until they are deleted, and other relays skip them.
    """
    oldest = select(outbox).order_by(outbox.c.id).limit(limit).with_for_update(skip_locked=True)
    with engine.begin() as connection:
        rows = connection.execute(oldest).all()
        for row in rows:
            TASKS[row.task].put(row.id, **row.arguments)  # durable when the call returns
        connection.execute(delete(outbox).where(outbox.c.id.in_([row.id for row in rows])))
    return len(rows)


def main(url: str) -> None:
    """Relay until Ctrl-C."""
    engine = create_engine(url)
    tables.create_all(engine)
    while True:
        if not relay(engine):
            time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])
