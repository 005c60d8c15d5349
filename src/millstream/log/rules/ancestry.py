"""Forks of logs: the rows that connect forks and parents, and the records that forks need.

The records of a fork below its fork point lie in its parent. A parent keeps the records that its forks
can still read, also after its deletion, and the same holds for the parent of the parent. Once a deleted
parent has no records left, its forks become forks of the grandparent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from millstream.format import keys
from millstream.format.lineage import (
    Fork,
    decode_fork,
    decode_set_back,
    encode_fork,
    encode_set_back,
    with_set_back,
)
from millstream.log.model.head import Head
from millstream.log.model.users import pinned
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View

FORKS_PER_STEP = 1_000
MARK_ROWS_PER_STEP = 64

FORK_NAME = "~fork-"
"""The infix of generated names of forks."""


class Tail(NamedTuple):
    """The records of a log from an offset on that were set aside, and the fork that holds them."""

    log_id: int
    at: int
    end: int
    aside_id: int


def fork_of(view: Rows | WriteTransaction, log_id: int) -> Fork | None:
    """Return the parent and the fork point of a fork, or None."""
    row = view.get(keys.fork(log_id))
    return None if row is None else decode_fork(row)


def put_fork(tx: WriteTransaction, log_id: int, fork: Fork) -> None:
    """Set the parent and the fork point of a fork."""
    before = fork_of(tx, log_id)
    if before is not None and before.parent_id != fork.parent_id:
        tx.erase(keys.forks(before.parent_id, log_id))
    if before is None or before.parent_id != fork.parent_id:
        tx.put(keys.forks(fork.parent_id, log_id), b"")
    tx.put(keys.fork(log_id), encode_fork(fork))


def children(view: Rows | WriteTransaction, log_id: int) -> Iterator[tuple[int, Fork]]:
    """Yield the forks of a log; the caller may change each fork meanwhile."""
    start, stop = keys.of_log(keys.FORKS, log_id)
    while rows := view.scan(start, stop, limit=FORKS_PER_STEP):
        for key, _ in rows:
            child_id = keys.pair(key)[1]
            fork = fork_of(view, child_id)
            if fork is not None:
                yield child_id, fork
        start = rows[-1][0] + b"\x00"


def release(tx: WriteTransaction, log_id: int) -> bool:
    """Give the forks of a removed log to its parent; return True if more work remains."""
    parent = fork_of(tx, log_id)
    forks = list(islice(children(tx, log_id), FORKS_PER_STEP + 1))
    for child_id, fork in forks[:FORKS_PER_STEP]:
        if parent is not None:
            point = min(parent.point, fork.point)
            put_fork(tx, child_id, fork._replace(parent_id=parent.parent_id, point=point))
        else:
            tx.erase(keys.forks(log_id, child_id))
            tx.erase(keys.fork(child_id))
    if len(forks) > FORKS_PER_STEP:
        return True
    if tx.drop_some(*keys.of_log(keys.MARKS, log_id), limit=MARK_ROWS_PER_STEP):
        return True
    if parent is not None:
        tx.erase(keys.forks(parent.parent_id, log_id))
        tx.erase(keys.fork(log_id))
    if tx.get(keys.set_back(log_id)) is not None:
        tx.erase(keys.set_back(log_id))
    return False


def forget_marks(tx: WriteTransaction, log_id: int) -> None:
    """Drop all marks of a log whose marked records are gone."""
    start, stop = keys.of_log(keys.MARKS, log_id)
    if tx.scan(start, stop, limit=1):
        tx.drop_all(start, stop)


def note_set_back(tx: WriteTransaction, log_id: int, number: int, at: int) -> None:
    """Store that the setback of this number moved the end of a log back to an offset."""
    key = keys.set_back(log_id)
    row = tx.get(key)
    before = [] if row is None else decode_set_back(row)
    tx.put(key, encode_set_back(with_set_back(before, number, at)))


def set_back_to(view: Rows, log_id: int, known: int) -> int | None:
    """Return the lowest end of a log since the setback number `known`, or None."""
    key = keys.set_back(log_id)
    row = view.get(key)
    later = [at for number, at in decode_set_back(row) if number > known] if row else []
    return min(later, default=None)


def pin(view: View, log_id: int) -> list[tuple[int, int]]:
    """Return the ranges of a log that its forks need, including the needs of their forks and queues."""
    return [
        needed
        for child_id, fork in children(view, log_id)
        for needed in _needed_by(view, child_id, fork.point)
    ]


def _needed_by(view: View, child_id: int, point: int) -> list[tuple[int, int]]:
    head = view.entity(keys.head(child_id), Head)
    ranges = pinned(view, child_id)
    if not head.deleted:
        ranges.append((head.dropped, point))
    return [(start, min(stop, point)) for start, stop in ranges if start < min(stop, point)]
