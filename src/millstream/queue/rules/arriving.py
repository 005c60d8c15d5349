"""Arrivals: what came to the logs of a plain queue a moment ago, placed by the claim that takes it.

A consumer that keeps up with its producers asks for records that were appended since its last claim.
They lie in memory, and a queue without a filter takes all of them: so the claim places them itself,
inside its own commit, and no log is looked at before it. Whatever is not so simple (records that are
folded, blocks, patterns, gaps) is left to routing.
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import block, entries, keys
from millstream.format.ids import CAPACITIES
from millstream.log.head import Head, Name
from millstream.queue.model.bucket_changes import Filled
from millstream.queue.model.slots import Span
from millstream.queue.model.state import Arrived, QueueState
from millstream.queue.rules.sources import inbox_of, later_of
from millstream.store.transaction import WriteTransaction

ARRIVALS_MAX = 128
"""Records of a log that one claim places: it runs under the write lock."""


def place_arrived(tx: WriteTransaction, key: bytes, queue: QueueState) -> bool:
    """Place what has come to the logs of a queue; True if nothing is left to be routed."""
    name, spec = queue.name, queue.spec
    if not spec.takes_all:
        return False
    for log in (inbox_of(name), *spec.sources):
        log_id = tx.entity(keys.log_name(log), Name).log_id
        if not log_id:
            continue
        head = tx.entity(keys.head(log_id), Head)
        position, end = queue.positions.get(log_id, 0), head.end
        if position >= end:
            continue
        if end - position > ARRIVALS_MAX or head.next_at(position) != position:
            return False
        while position < end:
            before, position = position, _place(tx, key, queue, log_id, position, end)
            if position == before:
                return False
    return _is_level_later(tx, queue)


def _is_level_later(tx: WriteTransaction, queue: QueueState) -> bool:
    """Whether what was put for later is placed: as a rule, the commit that puts it does so."""
    log_id = tx.entity(keys.log_name(later_of(queue.name)), Name).log_id
    return not log_id or queue.positions.get(log_id, 0) >= tx.entity(keys.head(log_id), Head).end


def _place(
    tx: WriteTransaction, key: bytes, queue: QueueState, log_id: int, position: int, end: int
) -> int:
    """Place records of a log from a position on, in one bucket; up to which offset."""
    first, room, bucket_id = queue.room()
    slot = first % CAPACITIES[queue.eras[-1][2]]
    spans = _spans(tx, log_id, position, min(end, position + room), slot)
    if not spans:
        return position
    last = spans[-1]
    count = last.slot + last.count - slot
    tx.change(keys.bucket(queue.queue_id, bucket_id), Filled(spans))
    tx.change(key, Arrived(tx.store_ms, log_id, position + count, first, count))
    return position + count


def _spans(tx: WriteTransaction, log_id: int, start: int, stop: int, slot: int) -> list[Span]:
    """Records that were appended one by one and lie in memory, as the fewest spans."""
    held, found = tx.state.overlay, list[Span]()
    for offset in range(start, stop):
        value = held.get(keys.entry(log_id, offset))
        if value is None or block.is_block(value):
            break
        try:
            message_id, (*_, at_ms) = entries.single_id(value), entries.single_metadata(value)
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
