"""Reading: the payloads of messages, fetched outside the write lock once they are claimed."""

from __future__ import annotations

from itertools import repeat

from millstream.format import keys
from millstream.log.head import Head
from millstream.log.reader import read_records
from millstream.log.recent import is_at_hand, recent_columns, recent_row
from millstream.queue import commands as c
from millstream.queue.message import Message
from millstream.store.engine import Snapshot
from millstream.store.state import State
from millstream.store.store import Store
from millstream.store.transaction import Transaction


_NAMES = "names of logs"


def read_granted(store: Store, queue: str, grants: list[c.Grant]) -> list[Message]:
    """The messages that a claim got, with their payloads."""
    if len(grants) == 1 and grants[0].count == 1:
        one = _read_one(store, queue, grants[0])
        if one is not None:
            return [one]
    found: list[Message] = []
    for grant in grants:
        log, stop = log_name(store, grant.log_id), grant.offset + grant.count
        ahead = grant.claim_id - grant.offset
        for some in recent_columns(store, grant.log_id, log, start=grant.offset, stop=stop):
            found += map(
                Message,
                repeat(queue),
                range(some.offsets.start + ahead, some.offsets.stop + ahead),
                repeat(grant.attempt),
                some.values,
                some.keys,
                some.headers,
                some.timestamps,
                repeat(log),
                some.offsets,
                repeat(grant.until_ms),
            )
    return found


def _read_one(store: Store, queue: str, grant: c.Grant) -> Message | None:
    """A message that was claimed alone, if its block is at hand."""
    row = recent_row(store, grant.log_id, grant.offset)
    if row is None:
        return None
    offset, value, timestamp, key, headers = row
    return Message(
        queue,
        grant.claim_id,
        grant.attempt,
        value,
        key,
        headers,
        timestamp,
        log_name(store, grant.log_id),
        offset,
        grant.until_ms,
    )


def are_at_hand(store: Store, grants: list[c.Grant]) -> bool:
    """Whether the messages that a claim got can be had without reading the file."""
    return all(
        is_at_hand(store, one.log_id, start=one.offset, stop=one.offset + one.count)
        for one in grants
    )


def read_inside(tx: Transaction, queue: str, grants: list[c.Grant]) -> list[Message]:
    """The same inside a transaction, where nothing can be forgotten meanwhile."""
    found: list[Message] = []
    for grant in grants:
        name, start = tx.entity(keys.head(grant.log_id), Head).name, grant.offset
        records = read_records(
            tx.state.overlay, tx.writer, grant.log_id, name, start=start, stop=start + grant.count
        )
        found += [
            Message(
                queue,
                claim_id,
                grant.attempt,
                record.value,
                record.key,
                record.headers,
                record.timestamp,
                name,
                record.offset,
                grant.until_ms,
            )
            for claim_id, record in enumerate(records, grant.claim_id)
        ]
    return found


def log_name(store: Store, log_id: int) -> str:
    """The name of a log, which it has for life."""
    names: dict[int, str] | None = store.scratch.get(_NAMES)
    name = None if names is None else names.get(log_id)
    if name is None:
        name = store.look(lambda state, snapshot: _name(state, snapshot, log_id))
        store.scratch.setdefault(_NAMES, {})[log_id] = name
    return name


def _name(state: State, snapshot: Snapshot, log_id: int) -> str:
    head = state.entity(keys.head(log_id), snapshot)
    assert isinstance(head, Head)
    return head.name
