"""Setting aside: a log gets another name, and its name goes to a fork of its first records.

The log that is set aside keeps its id and all its records, so that an offset of an id never stands
for another record. The fork has a new id; the name, settings, cursors, producers, metadata, queues and
rooms of the log go to it in the same commit, as far as they concern the common records. Readers see
another log under the name (`log.rules.ancestry.equal_below` says where they continue).

A merge within one store is refused if a cursor or a queue has passed the common records. Between
stores there is no choice once a log has changed hands: cursors and queues that have passed the common
records go back to their end, and the sync reports them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.errors import AlreadyExists, Conflict, OutOfRange, Truncated
from millstream.format import keys
from millstream.format.lineage import Fork
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.acknowledged import AcknowledgedRanges
from millstream.log.model.cursor_state import CursorState, CursorTaken, LossCounted
from millstream.log.model.head import (
    Created,
    Head,
    LogNamed,
    LogPlaced,
    NameTaken,
    Renamed,
    Touched,
)
from millstream.log.model.metadata import MetadataState, Set
from millstream.log.model.names import check_integer, check_name
from millstream.log.model.producer import Produced, ProducerState
from millstream.log.rules.ancestry import FORK_NAME, Tail, put_fork, take_name
from millstream.log.rules.operations import check_free, find_log, need_log
from millstream.record import SetBackReader
from millstream.replica import commands as c
from millstream.replica.chain import Mark
from millstream.replica.copies.adoption import fenced
from millstream.replica.copies.marks import add_marks, mark_at
from millstream.store.commit.transaction import WriteTransaction

Passed = Callable[[WriteTransaction, int, int], str | None]
"""Names a reader that has passed an offset of a log, or None."""

Follow = Callable[[WriteTransaction, Tail], list[SetBackReader]]
"""Moves readers to the log that took the name, and returns the readers that had passed the offset."""


class Readers(NamedTuple):
    """What queues and rooms do when a log is set aside."""

    passed: Passed
    follow: Follow


RANDOM_BYTES = 4
"""In the generated name of a fork: two forks of a log rarely try the same name."""


def set_aside(tx: WriteTransaction, command: c.SetAside, readers: Readers) -> c.Aside:
    """Set a log aside from an offset on, and set the readers that have passed the offset back."""
    log_id, head = need_log(tx, command.log)
    check_integer("an offset", command.at)
    if head.epoch > command.epoch:
        raise fenced(head)
    name = fork_name(tx, command.log, f"{command.epoch}-")
    return c.Aside(name, set_tail_aside(tx, log_id, command.at, name, readers.follow))


def set_tail_aside(
    tx: WriteTransaction, log_id: int, at: int, name: str, follow: Follow
) -> list[SetBackReader]:
    """Set a log aside under a free name; return the readers that had passed the offset `at`."""
    head = tx.entity(keys.head(log_id), Head)
    if at > head.end:
        raise OutOfRange(
            f"log {head.name!r} ends at {head.end}: there is nothing from {at} on to set aside",
            position=at,
            end=head.end,
        )
    if at < head.start:
        raise Truncated(
            f"log {head.name!r} begins at {head.start}: what is from {at} on cannot be set aside",
            log=head.name,
            offset=at,
            start=head.start,
        )
    check_free(tx, head, "")
    tail = Tail(log_id, at, head.end, tx.take_entity_id())
    _take_over(tx, tail)
    take_name(tx, log_id, tail.new_id, at)
    tx.change(keys.log_name(head.name), LogNamed(tail.new_id))
    tx.change(keys.log_name(name), LogNamed(log_id))
    tx.change(keys.head(log_id), Renamed(name, tx.wall_ms))
    _move_metadata(tx, tail)
    _move_producers(tx, tail)
    return [*_move_cursors(tx, tail), *follow(tx, tail)]


def _take_over(tx: WriteTransaction, tail: Tail) -> None:
    """Make the head and the first mark of the log that takes the name."""
    head = tx.entity(keys.head(tail.log_id), Head)
    anchor, dropped = _anchor(tx, tail.log_id, head)
    taken = NameTaken(
        name=head.name,
        former_name=head.former_name,
        created_ms=head.created_ms,
        start=head.start,
        dropped=dropped,
        end=tail.at,
        timestamp_ms=head.timestamp_ms,
        retention=head.retention,
        owner=head.owner,
        epoch=head.epoch,
        gaps=list(head.gaps),
    )
    tx.change(keys.head(tail.new_id), taken)
    if anchor is not None:
        add_marks(tx, tail.new_id, [anchor])


def make_fork(tx: WriteTransaction, parent_id: int, name: str) -> int:
    """Make a fork at the end of a log, with its name, its head and its fork point."""
    if find_log(tx, name) is not None:
        raise AlreadyExists(f"there is a log {name!r} already", name=name)
    parent = tx.entity(keys.head(parent_id), Head)
    log_id = tx.take_entity_id()
    tx.change(keys.log_name(name), LogNamed(log_id))
    tx.change(keys.head(log_id), Created(name, tx.wall_ms))
    anchor, dropped = _anchor(tx, parent_id, parent)
    tx.change(keys.head(log_id), LogPlaced(parent.start, dropped, parent.end))
    tx.change(keys.head(log_id), Touched(parent.timestamp_ms))
    put_fork(tx, log_id, Fork(parent_id, parent.end))
    if anchor is not None:
        add_marks(tx, log_id, [anchor])
    return log_id


def _anchor(tx: WriteTransaction, parent_id: int, parent: Head) -> tuple[Mark | None, int]:
    """Return the first mark of a fork, and the offset from which the fork keeps bytes.

    The fork keeps the bytes that its hash is computed from. There is no gap between a mark and the
    start: truncating a log past its end forgets the marks.
    """
    anchor = mark_at(tx.view, parent_id, parent.start)
    return anchor, parent.start if anchor is None else anchor.offset


def fork_pattern(log: str) -> str:
    """Return the pattern of the generated names of a log's forks."""
    return log[: NAME_CHARS_MAX - len(FORK_NAME) - 2 * RANDOM_BYTES] + f"{FORK_NAME}*"


def fork_name(tx: WriteTransaction, log: str, middle: str = "") -> str:
    """Return a generated name for a fork that no log has."""
    while True:
        ending = f"{FORK_NAME}{middle}{secrets.token_hex(RANDOM_BYTES)}"
        name = log[: NAME_CHARS_MAX - len(ending)] + ending
        if find_log(tx, name) is None:
            return check_name(name)


def check_passed(tx: WriteTransaction, log_id: int, at: int, passed: Passed) -> None:
    """Raise `Conflict` if a cursor or a queue has passed an offset."""
    head = tx.entity(keys.head(log_id), Head)
    cursor = next(_cursors_past(tx, log_id, at), None)
    reader = f"cursor {keys.trailing_name(cursor)!r}" if cursor else passed(tx, log_id, at)
    if reader is not None:
        raise Conflict(
            f"{reader} has passed offset {at} of log {head.name!r}: what is there cannot be replaced "
            "any more; fork the log, or delete that reader",
            log=head.name,
            offset=at,
        )


def _cursors_past(tx: WriteTransaction, log_id: int, at: int) -> Iterator[bytes]:
    for key in tx.view.find_all(*keys.range_of(keys.cursor(log_id, ""))):
        if tx.entity(key, CursorState).marks.highest() > at:
            yield key


def _move_cursors(tx: WriteTransaction, tail: Tail) -> list[SetBackReader]:
    """Move the cursors; acknowledgements of the tail do not count for the records that replace it."""
    readers = []
    for key in list(tx.view.find_all(*keys.range_of(keys.cursor(tail.log_id, "")))):
        state = tx.entity(key, CursorState)
        if not state.present:
            continue
        name, passed = keys.trailing_name(key), int(state.marks.highest())
        marks = AcknowledgedRanges(state.marks.floor, state.marks.ranges())
        marks.cut(tail.at)
        goes_back = passed > tail.at
        set_back = state.set_back + goes_back
        taken = CursorTaken(marks.floor, marks.ranges(), state.section, state.durable, set_back)
        tx.change(key, None)
        tx.change(keys.cursor(tail.new_id, name), taken)
        if state.lost or state.lost_below:
            counted = LossCounted(state.lost, state.lost_below)
            tx.change(keys.cursor(tail.new_id, name), counted)
        if goes_back:
            readers.append(
                SetBackReader(kind="cursor", name=name, passed=passed, offset=marks.floor)
            )
    return readers


def _move_producers(tx: WriteTransaction, tail: Tail) -> None:
    """Move the producers to the log that takes the name, and forget their appends in the tail.

    So producers can send these appends again.
    """
    limit = tx.limits.producer_sequences_kept
    for key in list(tx.view.find_all(*keys.range_of(keys.producer(tail.log_id, "")))):
        state = tx.entity(key, ProducerState)
        first = state.last - len(state.offsets) + 1
        moved = [
            Produced(
                epoch=state.epoch,
                sequence=first + n,
                first=offset,
                count=count,
                at_ms=state.at_ms,
                keep=limit,
                idle_ms=state.idle_ms,
            )
            for n, (offset, count) in enumerate(state.offsets)
            if offset + count <= tail.at
        ]
        tx.change(key, None)
        for append in moved:
            tx.change(keys.with_owner(key, tail.new_id), append)


def _move_metadata(tx: WriteTransaction, tail: Tail) -> None:
    entries = dict(tx.entity(keys.metadata(tail.log_id), MetadataState).entries)
    if entries:
        tx.change(keys.metadata(tail.log_id), None)
    for key, meta in entries.items():
        tx.change(keys.metadata(tail.new_id), Set(key, meta))
