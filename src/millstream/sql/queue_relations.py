"""The relations of queues: `millstream_queues` and `millstream_messages`.

A scan claims nothing and routes nothing. A message that the queue has not routed yet is available, and
has no claim id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from millstream.errors import InvalidName, NotFound
from millstream.log.model.names import check_name
from millstream.queue.commands import DescribeQueue, PeekMessages
from millstream.queue.model.message import Message, QueueInfo, messages_of
from millstream.queue.model.own_logs import put_id
from millstream.queue.service.peek import STATES
from millstream.queue.service.unrouted_records import unrouted_records
from millstream.record import Record
from millstream.sql.relation import (
    EQUAL,
    Column,
    Relation,
    Scan,
    headers_text,
    text_or_bytes,
    time_text,
)
from millstream.threads.database import Millstream

PAGE = 200
"""Messages that a scan holds in memory."""


class StoredMessage(NamedTuple):
    """A row of `millstream_messages`."""

    queue: str
    state: str
    entry: Message | Record
    """A record if the queue has not routed the message yet."""


def _scan_queues(ms: Millstream, scan: Scan) -> Iterator[QueueInfo]:
    name = scan.text("name")
    if name is None:
        yield from ms.queues()
        return
    with suppress(InvalidName):  # no queue can have the name
        info = ms.session.execute(DescribeQueue(check_name(name, "queue")))
        if info is not None:
            yield info


def _scan_messages(ms: Millstream, scan: Scan) -> Iterator[StoredMessage]:
    name = scan.text("queue")
    state = scan.text("state")
    for queue in [name] if name is not None else [info.name for info in ms.queues()]:
        with suppress(InvalidName, NotFound):  # the queue is missing, or was deleted meanwhile
            for peeked in STATES if state is None else STATES.keys() & {state}:
                yield from _peek(ms, queue, peeked)
            if state in (None, "available"):
                for record in unrouted_records(ms.session, queue):
                    yield StoredMessage(queue, "available", record)


def _peek(ms: Millstream, queue: str, state: str) -> Iterator[StoredMessage]:
    after = -1
    while lots := ms.session.execute(PeekMessages(queue, state, PAGE, after, route=False)):
        messages = messages_of(lots)
        for message in messages:
            yield StoredMessage(queue, state, message)
        after = messages[-1].claim_id


def _value(row: StoredMessage) -> bytes | None:
    """Return the value; NULL if it is unreadable."""
    return None if isinstance(row.entry, Message) and row.entry.damage else row.entry.value


def _of_claim(attribute: str, otherwise: Any = None) -> Any:
    """Return a getter of a fact that only routed messages have."""

    def get(row: StoredMessage) -> Any:
        return getattr(row.entry, attribute) if isinstance(row.entry, Message) else otherwise

    return get


_until = _of_claim("until")
_reason = _of_claim("reason")


def _spec_text(info: QueueInfo) -> str:
    return msgspec.json.encode(asdict(info.spec)).decode()


QUEUES = Relation(
    "millstream_queues",
    (
        Column("name", "TEXT", lambda info: info.name),
        Column("ready", "INTEGER", lambda info: info.available + info.unrouted),
        Column("delayed", "INTEGER", lambda info: info.delayed),
        Column("in_flight", "INTEGER", lambda info: info.in_flight),
        Column("failed", "INTEGER", lambda info: info.failed),
        Column("done", "INTEGER", lambda info: info.done),
        Column("paused", "INTEGER", lambda info: int(info.paused)),
        Column("oldest_s", "REAL", lambda info: info.oldest_s),
        Column("in_per_second", "REAL", lambda info: info.in_per_second),
        Column("done_per_second", "REAL", lambda info: info.done_per_second),
        Column("available", "INTEGER", lambda info: info.available),
        Column("unrouted", "INTEGER", lambda info: info.unrouted),
        Column("created", "TEXT", lambda info: time_text(info.created)),
        Column("spec", "TEXT", _spec_text),
    ),
    key=("name",),
    searched={"name": EQUAL},
    scan=_scan_queues,
)

MESSAGES = Relation(
    "millstream_messages",
    (
        Column("queue", "TEXT", lambda row: row.queue),
        Column("state", "TEXT", lambda row: row.state),
        Column("id", "INTEGER", lambda row: put_id(row.queue, row.entry.log, row.entry.offset)),
        Column("claim_id", "INTEGER", _of_claim("claim_id")),
        Column("time", "TEXT", lambda row: time_text(row.entry.timestamp)),
        Column("key", "", lambda row: text_or_bytes(row.entry.key)),
        Column("value", "", lambda row: text_or_bytes(_value(row))),
        Column("headers", "TEXT", lambda row: headers_text(row.entry.headers)),
        Column("attempts", "INTEGER", _of_claim("attempt", 0)),
        Column("until", "TEXT", lambda row: time_text(_until(row))),
        Column("reason", "TEXT", lambda row: _reason(row) or None),
        Column("log", "TEXT", lambda row: row.entry.log),
        Column("offset", "INTEGER", lambda row: row.entry.offset),
    ),
    key=("queue", "log", "offset", "state"),
    searched={"queue": EQUAL, "state": EQUAL},
    scan=_scan_messages,
)
