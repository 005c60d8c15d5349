"""Forks of logs: the rows that connect forks and parents, and the records that forks need.

The records of a fork below its fork point lie in its parent. A parent keeps the records that its forks
can still read, also after its deletion, and the same holds for the parent of the parent. Once a deleted
parent has no records left, its forks become forks of the grandparent.

Setting records aside gives the name of a log to a new log, which is a fork of the old log
(`take_name`). The new log lists the old log as a former log of its name: readers of the old log ask
there where to continue (`equal_below`), and the old log can be merged into the new log (`parent_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from millstream.format import keys
from millstream.format.lineage import (
    Fork,
    Former,
    decode_fork,
    decode_former,
    encode_fork,
    encode_former,
)
from millstream.log.model.head import Head, Name
from millstream.log.model.users import NO_END, LogUsers
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View

FORKS_PER_STEP = 1_000
MARK_ROWS_PER_STEP = 64

ANCESTORS_MAX = 100_000
"""More ancestors of a log would be a circle of damaged rows."""

FORMER_LOGS_MAX = 1_000
"""Former logs that a name remembers; a reader of an older log begins as in an unrelated log."""

FORK_NAME = "~fork-"
"""The infix of generated names of forks."""


class Tail(NamedTuple):
    """The records from an offset on of a log that was set aside, and the log that took its name."""

    log_id: int
    at: int
    end: int
    new_id: int


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


def holders(view: Rows | WriteTransaction, log_id: int) -> Iterator[tuple[int, int]]:
    """Yield the parent of a fork, the grandparent and so on, each with the offset below which it, or
    an ancestor of it, holds the records of the fork.
    """
    below = NO_END
    for _ in range(ANCESTORS_MAX):
        fork = fork_of(view, log_id)
        if fork is None:
            return
        log_id, below = fork.parent_id, min(below, fork.point)
        yield log_id, below


def children(view: Rows | WriteTransaction, log_id: int) -> Iterator[tuple[int, Fork]]:
    """Yield the forks of a log; the caller may change each fork meanwhile."""
    start, stop = keys.of_log(keys.FORKS, log_id)
    while rows := view.scan(start, stop, limit=FORKS_PER_STEP):
        for key, _ in rows:
            child_id = keys.pair(key)[1]
            fork = fork_of(view, child_id)
            if fork is not None:
                yield child_id, fork
        start = keys.successor(rows[-1][0])


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
    return tx.drop_some(*keys.of_log(keys.FORMER, log_id), limit=FORMER_LOGS_MAX)


def forget_marks(tx: WriteTransaction, log_id: int) -> None:
    """Drop all marks of a log whose marked records are gone."""
    start, stop = keys.of_log(keys.MARKS, log_id)
    if tx.scan(start, stop, limit=1):
        tx.drop_all(start, stop)


# Former logs of a name.


def former_of(view: Rows | WriteTransaction, log_id: int, former_id: int) -> Former | None:
    """Return the relation of a log to a former log of its name, or None."""
    row = view.get(keys.former(log_id, former_id))
    return None if row is None else decode_former(row)


def equal_below(view: Rows | WriteTransaction, log_id: int, known_id: int) -> int | None:
    """Return the offset below which a log has the records of a former log of its name.

    A reader that knows the log `known_id` continues in the log `log_id` at this offset, at most. None
    means that both are the same log, or unrelated, as after a deletion.
    """
    former = former_of(view, log_id, known_id) if known_id and known_id != log_id else None
    return None if former is None else former.equal_below


def parent_of(view: View | WriteTransaction, log_id: int) -> Fork | None:
    """Return the log into which a fork can be merged, with the offsets of the merge, or None.

    This is the log of `fork_of`, with two exceptions. A log that was set aside has the log that took
    its name. The latter has the parent of the log whose name it took.
    """
    head = view.entity(keys.head(log_id), Head)
    if head.former_name:
        successor_id = view.entity(keys.log_name(head.former_name), Name).log_id
        former = former_of(view, successor_id, log_id)
        return None if former is None else Fork(successor_id, *former)
    fork = fork_of(view, log_id)
    while fork is not None and former_of(view, log_id, fork.parent_id) is not None:
        before = fork_of(view, fork.parent_id)
        point = min(fork.point, before.point) if before else 0
        fork = before and before._replace(point=point, merged=fork.merged)
    return fork


def put_merged(tx: WriteTransaction, log_id: int, merged: int) -> None:
    """Store up to which offset a fork was merged into `parent_of` the fork."""
    parent, fork = parent_of(tx, log_id), fork_of(tx, log_id)
    assert parent is not None
    if tx.entity(keys.head(log_id), Head).former_name:
        former = Former(parent.point, merged)
        tx.put(keys.former(parent.parent_id, log_id), encode_former(former))
    elif fork is not None:
        put_fork(tx, log_id, fork._replace(merged=merged))


def take_name(tx: WriteTransaction, log_id: int, new_id: int, at: int) -> None:
    """Make a new log a fork of a log that is set aside, and give the relations of that log to it.

    Called before the name changes hands. Forks of the common records become forks of the new log.
    """
    former_name = tx.entity(keys.head(log_id), Head).former_name
    parent = parent_of(tx, log_id)
    merged = 0 if parent is None or former_name else min(parent.merged, at)
    if former_name and parent is not None:
        former = Former(min(parent.point, at), min(parent.merged, at))
        tx.put(keys.former(parent.parent_id, new_id), encode_former(former))
    # The new log needs no records of logs between it and the log that holds the records below `at`.
    # The log into which it can be merged stays in its ancestry.
    holder_id = log_id
    for ancestor_id, below in holders(tx, log_id):
        if at > below:
            break
        holder_id = ancestor_id
        if parent is not None and ancestor_id == parent.parent_id:
            break
    for child_id, fork in list(children(tx, log_id)):
        if fork.point <= at and former_of(tx, child_id, log_id) is None:
            put_fork(tx, child_id, fork._replace(parent_id=new_id))
    put_fork(tx, new_id, Fork(holder_id, at, merged))
    rows = tx.scan(*keys.of_log(keys.FORMER, log_id), limit=FORMER_LOGS_MAX)
    for key, _ in rows:
        tx.erase(key)
    for key, value in rows[-FORMER_LOGS_MAX + 1 :]:
        former = decode_former(value)
        former = former._replace(equal_below=min(former.equal_below, at))
        tx.put(keys.former(new_id, keys.pair(key)[1]), encode_former(former))
    tx.put(keys.former(new_id, log_id), encode_former(Former(at)))


def pin(view: View, log_id: int) -> list[tuple[int, int]]:
    """Return the ranges of a log that its forks need, including the needs of their forks and queues."""
    others = [other for other in view.state.part(LogUsers).pins if other is not pin]
    needed: list[tuple[int, int]] = []
    forks = [(child_id, fork.point) for child_id, fork in children(view, log_id)]
    while forks:
        fork_id, below = forks.pop()
        head = view.entity(keys.head(fork_id), Head)
        ranges = [needed_range for other in others for needed_range in other(view, fork_id)]
        if not head.deleted:
            ranges.append((head.dropped, below))
        needed += [(start, min(stop, below)) for start, stop in ranges if start < min(stop, below)]
        forks += [(child_id, min(fork.point, below)) for child_id, fork in children(view, fork_id)]
    return needed
