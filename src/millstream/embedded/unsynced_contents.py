"""The contents of a store that a sync does not copy: everything except logs.

A user who takes a synced copy for a backup must know its gaps, so each sync asks the giving stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from millstream.engine.protocol import query_tables
from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.head import Head
from millstream.log.model.names import PRIVATE
from millstream.log.reading import queries
from millstream.queue.commands import DescribeQueue
from millstream.queue.service.info import describe_queue
from millstream.replica.commands import ListUnsynced, Unsynced
from millstream.rooms.operations import all_rooms
from millstream.rooms.tickets import BOOK
from millstream.store.state.view import View
from millstream.store.store import Store

COUNTED_MAX = 1_000
"""The most counted of each kind; a store with more reports this number."""

NAMED_MAX = 20
"""The most names reported of each kind."""

_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite^_%' ESCAPE '^' AND name NOT LIKE 'millstream^_%' ESCAPE '^' "
    "ORDER BY name"
)


def list_unsynced(store: Store, _query: ListUnsynced) -> list[Unsynced]:
    """Return the number and names of each kind that a sync does not copy; empty kinds are left out."""
    store.refresh()
    queues, cursors, rooms = store.view(_names)
    tables = _tables(store) if "sql" in store.engine.abilities else []
    messages = sum(_messages(store, name) for name in queues)
    kinds = (
        _of("queue", queues, messages),
        _of("cursor", cursors),
        _of("room", rooms),
        Unsynced("token", _tokens(store), []),
        _of("table", tables),
    )
    return [kind for kind in kinds if kind.count]


def _of(kind: str, names: list[str], messages: int = 0) -> Unsynced:
    return Unsynced(kind, len(names), names[:NAMED_MAX], messages)


def _names(view: View) -> tuple[list[str], list[str], list[str]]:
    """Return the names of queues, of cursors with their logs, and of rooms."""
    prefix = keys.prefix(keys.QUEUE)
    queues = (keys.leading_name(key) for key in view.find_all(*keys.range_of(prefix)))
    rooms = (room.head.name.partition(":")[2] for room in all_rooms(view))
    return _some(queues), _some(_cursors(view)), _some(rooms)


def _some(names: Iterable[str]) -> list[str]:
    return [name for name, _ in zip(names, range(COUNTED_MAX), strict=False)]


def _cursors(view: View) -> Iterator[str]:
    for key in view.find_all(*keys.range_of(keys.prefix(keys.CURSOR))):
        log = view.entity(keys.head(keys.owner(key)), Head).name
        if not log.startswith(PRIVATE):
            yield f"{log}/{keys.trailing_name(key)}"


def _messages(store: Store, queue: str) -> int:
    info = describe_queue(store, DescribeQueue(queue))
    if info is None:
        return 0
    return info.available + info.unrouted + info.delayed + info.in_flight + info.failed


def _tables(store: Store) -> list[str]:
    return [name for (name,) in query_tables(store.engine, _TABLES, ()).rows[:COUNTED_MAX]]


class _Entry(msgspec.Struct):
    """An entry of the register of tokens."""

    type: str
    id: str


def _tokens(store: Store) -> int:
    """Return the number of registered tokens, including expired ones."""
    tokens: set[str] = set()
    position, end = queries.get_bounds(store, c.GetBounds(BOOK))
    with suppress(MillstreamError, msgspec.MsgspecError):  # the doctor reports damage
        while position < end:
            query = c.ReadBlocks(BOOK, position, end, store.limits.read_bytes_max)
            for block in queries.read_blocks(store, query):
                for record in block.records():
                    entry = msgspec.json.decode(record.value or b"", type=_Entry)
                    (tokens.add if entry.type == "made" else tokens.discard)(entry.id)
                position = block.offsets.stop
    return len(tokens)
