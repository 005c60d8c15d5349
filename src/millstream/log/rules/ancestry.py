"""Forks, as the store knows them: where the first records of a fork lie, and which log needs which.

A fork's records below its fork point lie in its parent, the others are its own. What a fork may still
read is needed of its parent, and so on upwards. A fork whose parent is deleted keeps what it needs of it;
once nothing is left of a parent, its forks are forks of the parent's own parent.
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
"""In the generated name of a fork."""


class Tail(NamedTuple):
    """The end of a log that was set aside: its records from an offset on, and the fork that has them now."""

    log_id: int
    at: int
    end: int
    aside_id: int


def fork_of(view: Rows | WriteTransaction, log_id: int) -> Fork | None:
    """Where a log's first records lie, if it is a fork."""
    found = view.get(keys.fork(log_id))
    return None if found is None else decode_fork(found)


def put_fork(tx: WriteTransaction, log_id: int, fork: Fork) -> None:
    """Say where a fork's first records lie."""
    before = fork_of(tx, log_id)
    if before is not None and before.parent_id != fork.parent_id:
        tx.erase(keys.forks(before.parent_id, log_id))
    if before is None or before.parent_id != fork.parent_id:
        tx.put(keys.forks(fork.parent_id, log_id), b"")
    tx.put(keys.fork(log_id), encode_fork(fork))


def children(view: Rows | WriteTransaction, log_id: int) -> Iterator[tuple[int, Fork]]:
    """The forks of a log; an operation may change each in turn."""
    start, stop = keys.of_log(keys.FORKS, log_id)
    while rows := view.scan(start, stop, limit=FORKS_PER_STEP):
        for key, _ in rows:
            child_id = keys.pair(key)[1]
            found = fork_of(view, child_id)
            if found is not None:
                yield child_id, found
        start = rows[-1][0] + b"\x00"


def release(tx: WriteTransaction, log_id: int) -> bool:
    """A log is removed for good: its forks become its parent's; True if there is more to do."""
    own = fork_of(tx, log_id)
    found = list(islice(children(tx, log_id), FORKS_PER_STEP + 1))
    for child_id, fork in found[:FORKS_PER_STEP]:
        if own is not None:
            point = min(own.point, fork.point)
            put_fork(tx, child_id, fork._replace(parent_id=own.parent_id, point=point))
        else:
            tx.erase(keys.forks(log_id, child_id))
            tx.erase(keys.fork(child_id))
    if len(found) > FORKS_PER_STEP:
        return True
    if tx.drop_some(*keys.of_log(keys.MARKS, log_id), limit=MARK_ROWS_PER_STEP):
        return True
    if own is not None:
        tx.erase(keys.forks(own.parent_id, log_id))
        tx.erase(keys.fork(log_id))
    if tx.get(keys.set_back(log_id)) is not None:
        tx.erase(keys.set_back(log_id))
    return False


def forget_marks(tx: WriteTransaction, log_id: int) -> None:
    """Drop the marks of a log that goes on without what they were for: all of them, or none."""
    start, stop = keys.of_log(keys.MARKS, log_id)
    if tx.scan(start, stop, limit=1):
        tx.drop_all(start, stop)


def note_set_back(tx: WriteTransaction, log_id: int, number: int, at: int) -> None:
    """Remember that a log's end went back to an offset, for the time of that number."""
    key = keys.set_back(log_id)
    found = tx.get(key)
    before = [] if found is None else decode_set_back(found)
    tx.put(key, encode_set_back(with_set_back(before, number, at)))


def set_back_to(view: Rows, log_id: int, known: int) -> int | None:
    """The lowest offset to which a log's end went since it had gone back `known` times."""
    key = keys.set_back(log_id)
    found = view.get(key)
    later = [at for number, at in decode_set_back(found) if number > known] if found else []
    return min(later, default=None)


def pin(view: View, log_id: int) -> list[tuple[int, int]]:
    """The offsets of a log that its forks need, for themselves and for forks and queues of theirs."""
    found = children(view, log_id)
    return [one for child_id, fork in found for one in _needed_by(view, child_id, fork.point)]


def _needed_by(view: View, child_id: int, point: int) -> list[tuple[int, int]]:
    head = view.entity(keys.head(child_id), Head)
    ranges = pinned(view, child_id)
    if not head.deleted:
        ranges.append((head.dropped, point))
    return [(start, min(stop, point)) for start, stop in ranges if start < min(stop, point)]
