"""The reads of a feed: the extent of a log, records of it, and a cache of recent deliveries.

Looks and fetches run in a thread of the session's pool and return values. The event loop itself
recalls records that are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, field

from millstream.errors import CorruptionError, Truncated
from millstream.format import keys
from millstream.log.commands import GetExtent
from millstream.log.reading import queries, reader
from millstream.log.reading.salvage import behind
from millstream.log.reading.unfolded_records import held_records
from millstream.record import Extent, Record
from millstream.store.store import Store

Why = Literal["expired", "damaged"]

FETCH_RECORDS_MAX = 100
"""The default number of records in a fetch, so that a long backlog does not delay other logs."""

FETCH_BYTES_MAX = 1024 * 1024
RECALL_BYTES_MAX = 64 * 1024
"""The most bytes that an event loop takes from memory itself, decoded within a millisecond."""

RECENT_RECORDS_MAX = 256
RECENT_BYTES_MAX = 128 * 1024
"""The most bytes of recent deliveries that a feed keeps, for listeners that return soon."""


class Delivery(Struct, eq=False):
    """Neighbouring records of a log, as delivered; listeners share results derived from them."""

    first: int
    records: Sequence[Record]
    shared: dict[Any, Any] = field(default_factory=dict)
    """Results that listeners derived from the records, such as encoded frames, by listener's key.
    """

    @property
    def stop(self) -> int:
        """The offset behind its last record."""
        return self.first + len(self.records)

    def since(self, position: int) -> Delivery:
        """Return the delivery from a position on."""
        if position <= self.first:
            return self
        return Delivery(position, self.records[position - self.first :])


class Missing(Struct, frozen=True):
    """Offsets whose records cannot be delivered."""

    first: int
    stop: int
    why: Why


class Recent:
    """The last deliveries of a feed, bounded in number and bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.deliveries: deque[Delivery] = deque()

    def add(self, delivery: Delivery) -> None:
        """Keep a delivery, and evict the oldest beyond the bounds."""
        deliveries = self.deliveries
        deliveries.append(delivery)
        self.bytes += _size(delivery)
        while deliveries and (
            self.bytes > RECENT_BYTES_MAX
            or deliveries[-1].stop - deliveries[0].first > RECENT_RECORDS_MAX
        ):
            self.bytes -= _size(deliveries.popleft())

    def find(self, start: int, stop: int) -> Delivery | None:
        """Return cached records from `start` on, up to `stop`; None if the first is not cached."""
        for delivery in self.deliveries:
            if delivery.first <= start < delivery.stop:
                later = delivery.since(start)
                return (
                    later if later.stop <= stop else Delivery(start, later.records[: stop - start])
                )
        return None

    def clear(self) -> None:
        """Drop all deliveries."""
        self.deliveries.clear()
        self.bytes = 0


def _size(delivery: Delivery) -> int:
    return sum([len(record.value or b"") for record in delivery.records])


def look_at(store: Store, log: str, known_id: int) -> Extent:
    """Read the extent of a log, including commits of other processes."""
    return queries.get_extent(store, GetExtent(log, known_id))


def watched_key(log: str, extent: Extent) -> bytes:
    """Return the key to watch: the log's head, or its name while the log does not exist."""
    return keys.head(extent.id) if extent.id else keys.log_name(log)


def recall(store: Store, log: str, start: int, stop: int) -> Delivery | None:
    """Return records from `start` on, up to `stop`, if they are in memory; needs no thread."""
    records = held_records(store, log, start=start, stop=stop, bytes_max=RECALL_BYTES_MAX)
    return Delivery(start, records) if records else None


def fetch(store: Store, log: str, start: int, stop: int) -> Delivery | Missing:
    """Return records from `start` on, up to `stop`, or the reason why the first is unavailable."""
    try:
        blocks = reader.read_blocks(store, log, start=start, stop=stop, bytes_max=FETCH_BYTES_MAX)
    except Truncated as error:
        return Missing(start, max(start + 1, int(error.data["start"])), "expired")
    except CorruptionError as error:
        return Missing(start, behind(error, start, stop), "damaged")
    if not blocks:  # the log was deleted, or cut, since its end was seen
        return Missing(start, stop, "expired")
    return Delivery(start, [record for block in blocks for record in block.records()])
