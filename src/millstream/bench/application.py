"""The application's own tables: interactive transactions, and messages that are put by SQL.

The same statements by `sqlite3` on a file without Millstream take turns with ours, in the same directory,
as durable: WAL, synchronous=FULL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from time import sleep

from millstream.bench.measure import PAYLOAD_BYTES, StepMeter, payloads, seconds
from millstream.bench.turns import Side, alternate
from millstream.threads.database import Millstream
from millstream.threads.database import open as open_file

ROWS = 1_000
QUEUE = "inbox"
PAUSE_S = 0.001
PAUSES_S = 0.05
CLAIM_WAIT_S = 30.0

_TABLES = (
    "CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, n INTEGER NOT NULL)",
    "INSERT INTO stock VALUES ('apple', 3)",
)
_SELECT = "SELECT n FROM stock WHERE item = ?"
_INSERT = "INSERT INTO orders (item, n) VALUES (?, ?)"
_POST = "INSERT INTO millstream_inbox (queue, value) VALUES (?, ?)"


def interactive(store: Millstream, directory: Path, total_s: float) -> tuple[StepMeter, StepMeter]:
    """Return plain SQLite and ours: a SELECT, an INSERT and a message in one commit."""
    jobs, value = store.create_queue("begun"), os.urandom(PAYLOAD_BYTES)
    with store.begin() as tx:
        for statement in _TABLES:
            tx.sql(statement)

    def ours() -> int:
        with store.begin() as tx:
            row = tx.sql(_SELECT, ("apple",)).one()
            tx.sql(_INSERT, ("apple", row["n"]))
            tx.put(jobs, value)
        return 1

    with closing(_connected(directory / "plain.db")) as plain:
        for statement in (*_TABLES, "CREATE TABLE jobs (id INTEGER PRIMARY KEY, value BLOB)"):
            plain.execute(statement)

        def theirs() -> int:
            plain.execute("BEGIN IMMEDIATE")
            (number,) = plain.execute(_SELECT, ("apple",)).fetchone()
            plain.execute(_INSERT, ("apple", number))
            plain.execute("INSERT INTO jobs (value) VALUES (?)", (value,))
            plain.execute("COMMIT")
            return 1

        limit, meter = alternate([Side(theirs), Side(ours)], total_s)
    return limit, meter


def posts(directory: Path, total_s: float, *, rows: int) -> tuple[StepMeter, StepMeter]:
    """Return a connection without Millstream, and the same connection beside an open store.

    Each step is a transaction with `rows` posts. The time of ours ends when all are in their queue.
    """
    values = payloads(rows)
    alone_path, beside_path = directory / f"alone-{rows}.db", directory / f"beside-{rows}.db"
    with (
        _inbox(alone_path) as alone,
        _inbox(beside_path) as beside,
        open_file(beside_path) as store,
    ):

        def post(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_POST, [(QUEUE, value) for value in values])
            connection.execute("COMMIT")
            return rows

        def await_moved() -> None:
            while beside.execute("SELECT 1 FROM millstream_inbox LIMIT 1").fetchone():
                sleep(PAUSE_S)

        contenders = [
            Side(lambda: post(alone)),
            Side(lambda: post(beside), settle=await_moved),
        ]
        limit, meter = alternate(contenders, total_s)
        store.queue(QUEUE).purge()
    return limit, meter


def claim_latency(directory: Path, total_s: float) -> StepMeter:
    """Return the times from the commit of a post until a consumer that waits has claimed the message.

    Posts come at random moments, because the store looks for posts at regular moments.
    """
    meter, random = StepMeter(), Random(1)
    path, (value,) = directory / "latency.db", payloads(1)
    with _inbox(path) as connection, open_file(path) as store:
        queue = store.queue(QUEUE)
        ends_s = seconds() + total_s
        while seconds() < ends_s:
            sleep(random.uniform(0, PAUSES_S))
            connection.execute(_POST, (QUEUE, value))
            committed_s = seconds()
            queue.ack(queue.claim(wait=CLAIM_WAIT_S))
            meter.step_s.append(seconds() - committed_s)
            meter.messages += 1
        meter.elapsed_s = sum(meter.step_s)
    return meter


@contextmanager
def _inbox(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection of the application to a file that was a store before."""
    with open_file(path) as store:
        store.create_queue(QUEUE)
    with closing(_connected(path)) as connection:
        yield connection


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection
