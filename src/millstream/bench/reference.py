"""The reference: a plain queue in a SQLite table, written in an afternoon.

A partial index finds ready messages, `UPDATE … RETURNING` claims messages, and a delete acknowledges
them. Claims and acknowledgements are commits, as durable as ours: WAL, synchronous=FULL. Headers are
returned as stored, like the headers of our messages; the consumer unpacks them on use.

For queues with an order, the table has a further column, and its index sorts by this column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import NamedTuple

import msgspec

from millstream.clock import SystemClock
from millstream.header import HeaderMapping

LEASE_MS = 3_600_000

_SCHEMA = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    claimed INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    until_ms INTEGER NOT NULL DEFAULT 0,
    headers BLOB NOT NULL,
    payload BLOB NOT NULL,
    place INTEGER NOT NULL DEFAULT 0
);
"""
_PUT = "INSERT INTO messages (headers, payload, place) VALUES (?, ?, ?)"
_CLAIM = """
UPDATE messages SET claimed = 1, attempts = attempts + 1, until_ms = :until_ms
WHERE id IN (SELECT id FROM messages AS m WHERE claimed = 0 {which} ORDER BY {order} LIMIT :count)
RETURNING id, attempts, headers, payload
"""

Claim = tuple[int, int, bytes, bytes]
"""Message id, attempt, packed headers, payload."""


class Order(NamedTuple):
    """What a queue chooses by: for more than the turn of its messages, each has a `place`."""

    header: str = ""
    """The header with the sort position."""
    order: str = "id"
    """By what messages are claimed."""
    which: str = ""
    """A condition more on those that may be claimed."""
    indexes: tuple[str, ...] = ("(id) WHERE claimed = 0",)


TURN = Order()
PRIORITY = Order("priority", "place DESC, id", "", ("(place DESC, id) WHERE claimed = 0",))
DUE = Order("due_ms", "place, id", "AND place <= :now_ms", ("(place, id) WHERE claimed = 0",))
GROUP = Order(
    "tenant",
    "id",
    "AND NOT EXISTS (SELECT 1 FROM messages WHERE place = m.place AND id < m.id)",
    (*TURN.indexes, "(place, id)"),
)


class ReferenceQueue:
    """Messages in a table; for a single thread."""

    def __init__(self, path: Path, *, order: Order = TURN, sync_delay_s: float = 0.0) -> None:
        self._delay_s = sync_delay_s
        self._header = order.header
        self._claim = _CLAIM.format(which=order.which, order=order.order)
        self._wall_ms = SystemClock().wall_ms
        self._encode = msgspec.msgpack.Encoder().encode
        self._rows = sqlite3.connect(path, isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = FULL")
        indexes = [
            f"CREATE INDEX i{at} ON messages {index};" for at, index in enumerate(order.indexes)
        ]
        self._rows.executescript(_SCHEMA + "".join(indexes))

    def put_many(self, values: Sequence[bytes], headers: Sequence[HeaderMapping]) -> None:
        """Put a batch, in one commit."""
        self._rows.execute("BEGIN IMMEDIATE")
        places = [header.get(self._header) or 0 for header in headers]
        rows = zip(map(self._encode, headers), values, places, strict=True)
        self._rows.executemany(_PUT, rows)
        self._rows.execute("COMMIT")

    def claim(self, count: int) -> list[Claim]:
        """Claim the oldest messages that are ready, in one commit."""
        now_ms = self._wall_ms()
        facts = {"until_ms": now_ms + LEASE_MS, "now_ms": now_ms, "count": count}
        claims: list[Claim] = self._rows.execute(self._claim, facts).fetchall()
        self._synced()
        return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        """Delete done messages in a commit."""
        marks = ",".join("?" * len(claims))
        gone = [claim[0] for claim in claims]
        self._rows.execute(f"DELETE FROM messages WHERE id IN ({marks})", gone)
        self._synced()

    def close(self) -> None:
        """Let go of the file."""
        self._rows.close()

    def _synced(self) -> None:
        if self._delay_s:
            sleep(self._delay_s)
