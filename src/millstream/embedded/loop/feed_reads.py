"""What a feed finds: one look at a log, some of its records, and what it remembers of those.

Looks and fetches run in a thread of the session's pool; what they give is a value. What is in memory
is recalled by the event loop itself.
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
from millstream.record import Record
from millstream.store.store import Store

Why = Literal["expired", "damaged"]

FETCH_RECORDS_MAX = 100
"""Records of one fetch, unless a feed says otherwise: a long backlog does not hold up other logs."""

FETCH_BYTES_MAX = 1024 * 1024
RECALL_BYTES_MAX = 64 * 1024
"""What an event loop takes from memory itself, about: it is decoded within a millisecond."""

RECENT_RECORDS_MAX = 256
RECENT_BYTES_MAX = 128 * 1024
"""What a feed remembers of what it delivered: a listener that comes back soon is served from it."""


class Delivery(Struct, eq=False):
    """Neighbouring records of a log, as they are delivered; listeners share what they make of it."""

    first: int
    records: Sequence[Record]
    shared: dict[Any, Any] = field(default_factory=dict)
    """What listeners have made of it, such as encoded frames, by their own keys."""

    @property
    def stop(self) -> int:
        """The offset behind its last record."""
        return self.first + len(self.records)

    def since(self, position: int) -> Delivery:
        """The part of it from a position on."""
        if position <= self.first:
            return self
        return Delivery(position, self.records[position - self.first :])


class Missing(Struct, frozen=True):
    """Offsets from which nothing can be delivered."""

    first: int
    stop: int
    why: Why


class Seen(Struct, frozen=True):
    """What one look at a log found."""

    key: bytes
    """The entity to watch: the log's head, or its name while there is no log."""
    start: int
    end: int
    setbacks: int
    set_back_to: int | None


class Recent:
    """The last deliveries of a feed, bounded in number and bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.deliveries: deque[Delivery] = deque()

    def add(self, delivery: Delivery) -> None:
        """Remember a delivery, and forget the oldest if there are too many."""
        found = self.deliveries
        found.append(delivery)
        self.bytes += _size(delivery)
        while found and (
            self.bytes > RECENT_BYTES_MAX or found[-1].stop - found[0].first > RECENT_RECORDS_MAX
        ):
            self.bytes -= _size(found.popleft())

    def find(self, start: int, stop: int) -> Delivery | None:
        """Some of the records in [start, stop), if the first of them is remembered."""
        for one in self.deliveries:
            if one.first <= start < one.stop:
                part = one.since(start)
                return part if part.stop <= stop else Delivery(start, part.records[: stop - start])
        return None

    def clear(self) -> None:
        """Forget all."""
        self.deliveries.clear()
        self.bytes = 0


def _size(delivery: Delivery) -> int:
    return sum([len(record.value or b"") for record in delivery.records])


def look_at(store: Store, log: str, known: int) -> Seen:
    """How far a log goes, with what other processes have committed."""
    log_id = reader.log_id_of(store, log)
    found = queries.get_extent(store, GetExtent(log, known))
    key = keys.head(log_id) if log_id else keys.log_name(log)
    return Seen(key, found.start, found.end, found.setbacks, found.set_back_to)


def recall(store: Store, log: str, start: int, stop: int) -> Delivery | None:
    """Some of the records in [start, stop), if they are in memory; needs no thread."""
    found = held_records(store, log, start=start, stop=stop, bytes_max=RECALL_BYTES_MAX)
    return Delivery(start, found) if found else None


def fetch(store: Store, log: str, start: int, stop: int) -> Delivery | Missing:
    """Some of the records in [start, stop), or why the first of them cannot be had."""
    try:
        blocks = reader.read_blocks(store, log, start=start, stop=stop, bytes_max=FETCH_BYTES_MAX)
    except Truncated as error:
        return Missing(start, max(start + 1, int(error.data["start"])), "expired")
    except CorruptionError as error:
        return Missing(start, behind(error, start, stop), "damaged")
    if not blocks:  # the log was deleted, or cut, since its end was seen
        return Missing(start, stop, "expired")
    return Delivery(start, [record for block in blocks for record in block.records()])
