"""The rules of cursors: functions of a transaction and a command."""

from __future__ import annotations

from millstream.errors import InvalidInput, NotFound, OutOfRange, TooLarge
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.acknowledged import AcknowledgedRanges, Range, common
from millstream.log.model.cursor_state import (
    Acked,
    CursorOpened,
    CursorState,
    FloorMoved,
    LossCounted,
)
from millstream.log.model.head import Head
from millstream.log.model.names import check_integer
from millstream.log.progress import set_aside
from millstream.log.rules.ancestry import equal_below
from millstream.log.rules.operations import find_log, make_log, need_log
from millstream.record import CursorInfo
from millstream.store.commit.transaction import WriteTransaction


def open_cursor(tx: WriteTransaction, command: c.OpenCursor) -> CursorInfo:
    """Make a cursor unless it exists, and describe it."""
    if check_integer("a section", command.section) < 1:
        raise InvalidInput(f"a section has at least one record, not {command.section}")
    log_id, head = make_log(tx, command.log)
    key = keys.cursor(log_id, command.cursor)
    state = tx.entity(key, CursorState)
    if not state.present:
        floor = {"earliest": head.start, "latest": head.end}.get(str(command.start), command.start)
        if type(floor) is not int or not 0 <= floor <= head.end:
            raise OutOfRange(
                f"a cursor on log {command.log!r} starts at 'earliest', 'latest' or an offset "
                f"up to {head.end}, not at {command.start!r}",
                position=command.start,
                end=head.end,
            )
        tx.change(key, CursorOpened(floor, command.section, command.durable))
        if floor < head.start:  # these records were deleted before there was a cursor
            tx.change(key, LossCounted(0, head.start))
    return cursor_info(command.cursor, state, log_id, head)


def acknowledge(tx: WriteTransaction, command: c.Acknowledge) -> int:
    """Acknowledge ranges of offsets."""
    key, state, head = _need_cursor(tx, command.log, command.cursor)
    ranges = [*command.lost, *command.ranges]
    _check_still_there(tx, command, max((stop for _, stop in ranges), default=0))
    for start, stop in ranges:
        if not check_integer("an offset", start) < check_integer("an offset", stop):
            raise InvalidInput(f"[{start}, {stop}) is not a range of positions")
        if stop > head.end:
            raise _past_the_end(head, stop - 1)
    marks: AcknowledgedRanges = state.marks
    ranges_max = tx.limits.cursor_ranges_max
    if marks.count() + len(ranges) > ranges_max and marks.with_added(ranges).count() > ranges_max:
        raise TooLarge(
            f"cursor {command.cursor!r} has {marks.count():,} gaps; fill them before "
            "acknowledging further out of order",
            size=marks.count(),
            limit=ranges_max,
        )
    if command.lost:
        _count_lost(tx, key, common(state.overtaken(head.start), command.lost))
    tx.change(key, Acked(ranges))
    return marks.floor


def move_cursor(tx: WriteTransaction, command: c.MoveCursor) -> int:
    """Set the floor of a cursor."""
    key, state, head = _need_cursor(tx, command.log, command.cursor)
    marks: AcknowledgedRanges = state.marks
    _check_still_there(tx, command, command.floor)
    if check_integer("an offset", command.floor) > head.end:
        raise _past_the_end(head, command.floor)
    if not command.forward:
        _count_lost(tx, key, state.overtaken(head.start), head.start)
        tx.change(key, FloorMoved(command.floor))
    elif command.floor > marks.floor:
        if command.lost:
            passed = state.overtaken(min(head.start, command.floor))
            _count_lost(tx, key, common(passed, command.lost))
        tx.change(key, FloorMoved(command.floor))
    return int(state.marks.floor)


def _count_lost(tx: WriteTransaction, key: bytes, lost: list[Range], below: int = 0) -> None:
    """Count lost records once: an acknowledgement or a move, which follows, passes them."""
    count = sum(stop - first for first, stop in lost)
    if count or below > tx.entity(key, CursorState).lost_below:
        tx.change(key, LossCounted(count, below))


def delete_cursor(tx: WriteTransaction, command: c.DeleteCursor) -> bool:
    """Forget a cursor."""
    log = find_log(tx, command.log)
    if log is None:
        return False
    key = keys.cursor(log[0], command.cursor)
    if not tx.entity(key, CursorState).present:
        return False
    tx.change(key, None)
    return True


def _check_still_there(
    tx: WriteTransaction, command: c.Acknowledge | c.MoveCursor, stop: int
) -> None:
    """Raise if the log now has other records at the acknowledged offsets than the reader saw.

    The reader names the log by its id. A log that was set aside since then has another id.
    """
    if not check_integer("the id of a log", command.log_id):
        return
    log_id, _ = need_log(tx, command.log)
    at = equal_below(tx, log_id, command.log_id)
    if at is not None and stop > at:
        raise set_aside(command.log, at)


def _need_cursor(tx: WriteTransaction, log: str, cursor: str) -> tuple[bytes, CursorState, Head]:
    log_id, head = need_log(tx, log)
    key = keys.cursor(log_id, cursor)
    state = tx.entity(key, CursorState)
    if not state.present:
        raise NotFound(f"log {log!r} has no cursor {cursor!r}", name=cursor)
    return key, state, head


def _past_the_end(head: Head, position: int) -> OutOfRange:
    return OutOfRange(
        f"position {position} is past the end {head.end} of log {head.name!r}",
        position=position,
        end=head.end,
    )


def cursor_info(name: str, state: CursorState, log_id: int, head: Head) -> CursorInfo:
    """Describe a cursor; truncated records count as acknowledged."""
    marks: AcknowledgedRanges = state.marks
    floor, _ = marks.next_gap(head.start)
    ranges = [(a, b) for a, b in marks.ranges() if a > floor]
    return CursorInfo(
        name=name,
        floor=floor,
        ranges=ranges,
        lag=max(0, head.end - floor) - sum(b - a for a, b in ranges),
        section=state.section,
        durable=state.durable,
        set_back=state.set_back,
        log_id=log_id,
        lost=state.lost + sum(b - a for a, b in state.overtaken(head.start)),
        lost_ranges=marks.gaps(marks.floor, head.start),
    )
