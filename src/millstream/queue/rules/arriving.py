"""Arrivals: what came to the logs of a plain queue a moment ago, placed by the claim that takes it.

A consumer that keeps up with its producers asks for records that were appended since its last claim.
They lie in memory, and a queue without a filter takes all of them: so the claim places them itself,
inside its own commit, and no log is looked at before it. Mostly it takes the first of them: then both
are one change (a claim of one takes 6 to 10 % less processor time, 2026-11). Whatever is not so simple
(records that are folded, blocks, patterns, gaps) is left to routing.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import CorruptionError
from millstream.format import block, entries, keys
from millstream.format.ids import CAPACITIES
from millstream.log.model.head import Head, Name
from millstream.queue.model.bucket_changes import Filled
from millstream.queue.model.queue_changes import Arrived
from millstream.queue.model.slots import Span
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import inbox_of, later_of
from millstream.store.commit.transaction import WriteTransaction

ARRIVALS_MAX = 128
"""Records of a log that one claim places: it runs under the write lock."""


class Newcomers(NamedTuple):
    """Records that came to a log of a queue, and where they are placed: all in one bucket."""

    log_id: int
    position: int
    """Up to where the log is routed with them."""
    first: int
    """The claim number of the first."""
    total: int
    """How many there are."""
    spans: list[Span]
    bucket_id: int
    slot: int
    """Of the first, in that bucket."""


def place_arrived(
    tx: WriteTransaction, key: bytes, queue: QueueState, *, leaves_one: bool = False
) -> tuple[bool, Newcomers | None]:
    """Place what has come to the logs of a queue; True if nothing is left to be routed.

    With `leaves_one`, if that is a single arrival, it is not placed but answered: the caller does so.
    """
    name, spec = queue.name, queue.spec
    left: Newcomers | None = None
    if not spec.takes_all:
        return False, None
    for log in (inbox_of(name), *spec.sources):
        log_id = tx.entity(keys.log_name(log), Name).log_id
        if not log_id:
            continue
        head = tx.entity(keys.head(log_id), Head)
        if queue.positions.get(log_id, 0) >= head.end:
            continue
        if left is not None:
            place_arrival(tx, key, queue, left)
            left, leaves_one = None, False
        position, end = queue.positions.get(log_id, 0), head.end
        if end - position > ARRIVALS_MAX or head.next_at(position) != position:
            return False, None
        while position < end:
            found = _find(tx, queue, log_id, position, end)
            if found is None:
                return False, None
            position = found.position
            if leaves_one and position == end:
                left = found
            else:
                place_arrival(tx, key, queue, found)
                leaves_one = False
    if left is not None and not _is_level_later(tx, queue):
        place_arrival(tx, key, queue, left)
        return False, None
    return left is not None or _is_level_later(tx, queue), left


def _is_level_later(tx: WriteTransaction, queue: QueueState) -> bool:
    """Whether what was put for later is placed: as a rule, the commit that puts it does so."""
    log_id = tx.entity(keys.log_name(later_of(queue.name)), Name).log_id
    return not log_id or queue.positions.get(log_id, 0) >= tx.entity(keys.head(log_id), Head).end


def _find(
    tx: WriteTransaction, queue: QueueState, log_id: int, position: int, end: int
) -> Newcomers | None:
    """Records of a log from a position on that go into one bucket; None if they cannot be placed."""
    first, room, bucket_id = queue.room()
    slot = first % CAPACITIES[queue.eras[-1][2]]
    spans = _spans(tx, log_id, position, min(end, position + room), slot)
    if not spans:
        return None
    last = spans[-1]
    count = last.slot + last.count - slot
    return Newcomers(log_id, position + count, first, count, spans, bucket_id, slot)


def place_arrival(tx: WriteTransaction, key: bytes, queue: QueueState, found: Newcomers) -> None:
    """Place an arrival: its messages are available."""
    tx.change(keys.bucket(queue.queue_id, found.bucket_id), Filled(found.spans))
    tx.change(key, Arrived(tx.store_ms, found.log_id, found.position, found.first, found.total))


def _spans(tx: WriteTransaction, log_id: int, start: int, stop: int, slot: int) -> list[Span]:
    """Records that were appended one by one and lie in memory, as the fewest spans."""
    held, found = tx.state.overlay, list[Span]()
    for offset in range(start, stop):
        value = held.get(keys.entry(log_id, offset))
        if value is None or block.is_block(value):
            break
        try:
            message_id, at_ms = entries.single_id(value), entries.single_metadata(value)[3]
        except CorruptionError:
            break  # routing finds out, and passes over it
        if found:
            last = found[-1]
            if message_id == last.message_id + last.count and at_ms == last.at_ms:
                found[-1] = Span(
                    last.slot, last.count + 1, log_id, last.offset, last.message_id, at_ms
                )
                continue
        found.append(Span(slot + offset - start, 1, log_id, offset, message_id, at_ms))
    return found
