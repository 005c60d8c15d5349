"""Setting aside: the tail of a log becomes a fork, so that other records can take its offsets.

No other operation lets an offset mean something else afterwards. A merge within one store is
therefore refused if a cursor or a queue has passed the offset. Between stores there is no choice
once a log has changed hands: cursors and queues that have passed the offset go back to it, and the
sync reports them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from millstream.errors import AlreadyExists, Conflict, OutOfRange, Truncated
from millstream.format import keys
from millstream.format.lineage import Fork
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.cursor_state import AcksSetBack, CursorState
from millstream.log.model.head import Created, Head, LogNamed, LogPlaced, Touched
from millstream.log.model.names import check_integer, check_name
from millstream.log.model.producer import Produced, ProducerState
from millstream.log.rules.ancestry import FORK_NAME, Tail, children, fork_of, put_fork
from millstream.log.rules.operations import check_free, find_log, need_log
from millstream.record import SetBackReader
from millstream.replica import commands as c
from millstream.replica.copies.adoption import fenced
from millstream.replica.copies.marks import add_marks, cut_marks, last_mark, mark_at
from millstream.replica.forks.transfer import lower_end
from millstream.store.commit.transaction import WriteTransaction

Passed = Callable[[WriteTransaction, int, int], str | None]
"""Names a reader that has passed an offset of a log, or None. Queues and rooms supply it."""

GoBack = Callable[[WriteTransaction, Tail], list[SetBackReader]]
"""Sets queues back that have passed the beginning of a tail."""

RANDOM_BYTES = 4
"""In the generated name of a fork: two forks of a log rarely try the same name."""


def set_aside(tx: WriteTransaction, command: c.SetAside, go_back: GoBack) -> c.Aside:
    """Move a log's records from an offset on into a fork, and set the readers of that tail back."""
    log_id, head = need_log(tx, command.log)
    check_integer("an offset", command.at)
    if head.epoch > command.epoch:
        raise fenced(head)
    name = fork_name(tx, command.log, f"{command.epoch}-")
    tail = set_tail_aside(tx, log_id, command.at, name)
    return c.Aside(name, [*_set_cursors_back(tx, tail), *go_back(tx, tail)])


def set_tail_aside(tx: WriteTransaction, log_id: int, at: int, name: str) -> Tail:
    """Set a tail aside under a free name. The caller sets readers back."""
    head = tx.entity(keys.head(log_id), Head)
    end = head.end
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
    aside_id = make_fork(tx, log_id, name)
    log_fork = fork_of(tx, log_id)
    for child_id, fork in list(children(tx, log_id)):
        if child_id != aside_id and fork.point > at:
            put_fork(tx, child_id, fork._replace(parent_id=aside_id))
    if log_fork is not None and log_fork.point > at:
        put_fork(tx, aside_id, Fork(log_fork.parent_id, log_fork.point))
        put_fork(tx, log_id, log_fork._replace(point=at, merged=min(log_fork.merged, at)))
    else:
        put_fork(tx, aside_id, Fork(log_id, at))
        if log_fork is not None and log_fork.merged > at:
            put_fork(tx, log_id, log_fork._replace(merged=at))
    lower_end(tx, log_id, aside_id, at)
    if last_mark(tx.view, log_id) is not None:
        cut_marks(tx, log_id, at)
    _forget_sequences(tx, log_id, at)
    return Tail(log_id, at, end, aside_id)


def make_fork(tx: WriteTransaction, parent_id: int, name: str) -> int:
    """Make a fork at the end of a log, with its name, its head and its fork point."""
    if find_log(tx, name) is not None:
        raise AlreadyExists(f"there is a log {name!r} already", name=name)
    parent = tx.entity(keys.head(parent_id), Head)
    log_id = tx.take_entity_id()
    tx.change(keys.log_name(name), LogNamed(log_id))
    tx.change(keys.head(log_id), Created(name, tx.wall_ms))
    # The fork keeps the bytes that its hash is computed from. There is no gap between a mark and
    # the start: truncating a log past its end forgets the marks.
    anchor = mark_at(tx.view, parent_id, parent.start)
    dropped = parent.start if anchor is None else anchor.offset
    tx.change(keys.head(log_id), LogPlaced(parent.start, dropped, parent.end))
    tx.change(keys.head(log_id), Touched(parent.timestamp_ms))
    put_fork(tx, log_id, Fork(parent_id, parent.end))
    if anchor is not None:
        add_marks(tx, log_id, [anchor])
    return log_id


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


def _set_cursors_back(tx: WriteTransaction, tail: Tail) -> list[SetBackReader]:
    """Set cursors back: acknowledgements of the tail do not count for replacing records."""
    readers = []
    for key in list(_cursors_past(tx, tail.log_id, tail.at)):
        marks = tx.entity(key, CursorState).marks
        name, passed = keys.trailing_name(key), int(marks.highest())
        tx.change(key, AcksSetBack(tail.at))
        offset = int(marks.floor)
        readers.append(SetBackReader(kind="cursor", name=name, passed=passed, offset=offset))
    return readers


def _forget_sequences(tx: WriteTransaction, log_id: int, at: int) -> None:
    """Forget producers' appends in the tail, so that the producers can send them again."""
    for key in tx.view.find_all(*keys.range_of(keys.producer(log_id, ""))):
        state = tx.entity(key, ProducerState)
        offsets = state.offsets
        remaining = [append for append in offsets if append[0] + append[1] <= at]
        if len(remaining) == len(offsets):
            continue
        first, limit = state.last - len(offsets) + 1, tx.limits.producer_sequences_kept
        again = [
            Produced(state.epoch, first + n, *append, state.at_ms, limit, state.idle_ms)
            for n, append in enumerate(remaining)
        ]
        tx.change(key, None)
        for append in again:
            tx.change(key, append)
