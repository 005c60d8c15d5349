"""History: the offset from which the last messages of a room follow, for listeners that come late.

Announcements of the store (`joined`, `left`, …) and messages of types that the listener does not
want are not counted: a listener that asks for 50 messages gets 50, unless the room has fewer. The
search reads metadata backwards in growing steps, without payloads, over a bounded range.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.errors import InvalidInput
from millstream.log.reading import reader
from millstream.log.reading.salvage import readable_headers
from millstream.rooms.commands import FindHistory
from millstream.rooms.events import RECORD
from millstream.rooms.names import HISTORY_MAX, RESERVED_TYPES, log_of
from millstream.rooms.packed_messages import TYPE
from millstream.store.store import Store

SEARCHED_MAX = 20_000
"""Offsets that are searched: messages of other types may lie between the wanted ones."""

FIRST_STEP = 256


def check_history(count: int) -> int:
    """Check a number of messages."""
    if not 0 <= count <= HISTORY_MAX:
        raise InvalidInput(
            f"history is a number of messages from 0 to {HISTORY_MAX:,}, not {count:,}; read the "
            "room's log to get more"
        )
    return count


def find_history(store: Store, query: FindHistory) -> int:
    """Return the offset of the first of the last messages; the room's end without a message."""
    log, missing = log_of(query.room), check_history(query.count)
    types = None if query.types is None else frozenset(query.types)
    bounds = reader.bounds_of(store, reader.log_id_of(store, log), log)
    first = stop = bounds.end
    lowest = max(bounds.start, bounds.end - SEARCHED_MAX)
    step = max(FIRST_STEP, 2 * missing)
    while missing and stop > lowest:
        start = max(lowest, stop - step)
        offsets = [
            offset
            for offset, kind in _types(store, log, start, stop)
            if kind not in RESERVED_TYPES and (types is None or kind in types)
        ]
        if offsets:
            first = offsets[-missing:][0]
            missing -= min(missing, len(offsets))
        stop, step = start, 2 * step
    return first


def _types(store: Store, log: str, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the offset and the type of each readable message in [start, stop)."""
    for offset, headers in readable_headers(store, log, start, stop):
        kind = headers.get(TYPE)
        yield offset, kind if isinstance(kind, str) and kind else RECORD
