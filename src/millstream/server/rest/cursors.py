"""Cursors: how far a named reader of a log has come; take what is next, acknowledge, seek.

The server keeps no position between requests. A take begins at the cursor's floor, or at the
`position` that the take before answered; what was acknowledged is left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.errors import CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.model.marks import Range, joined
from millstream.log.progress import SECTION, CursorProgress, forgotten
from millstream.record import CursorInfo, Record
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.logs import Existed
from millstream.server.rest.payload import Position, ReadRecord, Wait, show_record
from millstream.server.rest.records import READ_MAX, read_blocks


class CursorList(Struct, kw_only=True):
    """The cursors of a log."""

    cursors: list[CursorInfo]


class CursorBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a new cursor starts; one that exists stays where it is."""

    start: Position | str = "earliest"
    """'earliest', 'latest' or an offset."""
    section: Annotated[int, Meta(ge=1, le=2**31)] = SECTION
    """Records by which a cursor that is not durable moves its floor."""


class TakeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many records, and from where on."""

    n: Annotated[int, Meta(ge=1, le=READ_MAX)] = 1
    position: Position | None = None
    """The position that the take before answered; without one, the floor."""
    wait: Wait = 0.0
    """Seconds to wait for the first record, if there is none yet."""
    on_lost: Literal["skip", "raise"] = "skip"
    """If the log forgot records before the cursor acknowledged them: go on, or fail with 410."""


class Taken(Struct, kw_only=True):
    """Unacknowledged records in order."""

    records: list[ReadRecord]
    position: int
    """Take with this to go on after them."""
    lost: list[tuple[int, int]] | UnsetType = UNSET
    """Half-open ranges that the log forgot before the cursor had acknowledged them. They are told
    until they are acknowledged as `ranges`."""


class CursorAckBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What has been worked on: offsets, half-open ranges, everything before an offset."""

    offsets: list[Position] = []
    ranges: list[tuple[Position, Position]] = []
    up_to: Position | None = None


class SeekBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The new floor; what was acknowledged above it is forgotten."""

    offset: Position


class Floor(Struct, kw_only=True):
    """Everything below is acknowledged."""

    floor: int


endpoint = Endpoints("cursors")


@endpoint("GET /logs/{log}/cursors")
async def list_cursors(ask: Ask, log: str) -> CursorList:
    """How each cursor of a log stands."""
    return CursorList(cursors=await ask.execute(c.ListCursors(log)))


@endpoint("GET /logs/{log}/cursors/{cursor}", errors=(404,))
async def get_cursor(ask: Ask, log: str, cursor: str) -> CursorInfo:
    """How a cursor stands."""
    info = await ask.execute(c.DescribeCursor(log, cursor))
    if info is None:
        raise NotFound(f"log {log!r} has no cursor {cursor!r}", name=cursor)
    return info


@endpoint(
    "PUT /logs/{log}/cursors/{cursor}",
    description="It existed",
    also={201: "It was made"},
    body_optional=True,
    errors=(416,),
)
async def open_cursor(ask: Ask, log: str, cursor: str, body: CursorBody) -> Reply[CursorInfo]:
    """Make a durable cursor, unless there is one."""
    before = await ask.execute(c.DescribeCursor(log, cursor))
    info = await ask.execute(c.OpenCursor(log, cursor, body.start, body.section, True))
    return Reply(info, 201 if before is None else 200)


@endpoint("DELETE /logs/{log}/cursors/{cursor}")
async def delete_cursor(ask: Ask, log: str, cursor: str) -> Existed:
    """Forget a cursor."""
    return Existed(deleted=await ask.execute(c.DeleteCursor(log, cursor)))


@endpoint("POST /logs/{log}/cursors/{cursor}/take", body_optional=True, errors=(404, 410))
async def take_records(ask: Ask, log: str, cursor: str, body: TakeBody) -> Taken:
    """The next unacknowledged records, waiting for the first if asked.

    Nothing is reserved: two takes at the same position answer the same records. Hand in the
    `position` of the answer before to go on.
    """
    info = await get_cursor(ask, log, cursor)
    progress = CursorProgress(info)
    lost = info.lost
    if body.position is not None:
        progress.position = max(progress.position, body.position)
        lost = [(max(first, body.position), stop) for first, stop in lost if stop > body.position]
    start, end = await ask.execute(c.GetBounds(log))  # before: what comes meanwhile ends the wait
    if lost and body.on_lost == "raise":
        raise forgotten(log, cursor, lost, start)
    found = await _take(ask, log, progress, body.n)
    if not found and (wait_ms := ask.wait_ms(body.wait)):
        awaited = max(progress.position, end)
        if await ask.unless_over(c.WaitForOffset(log, awaited, wait_ms)):
            found = await _take(ask, log, progress, body.n)
    return Taken(
        records=[show_record(one) for one in found], position=progress.position, lost=lost or UNSET
    )


async def _take(ask: Ask, log: str, progress: CursorProgress, n: int) -> list[Record]:
    """As a cursor takes; ends early when an answer's worth of bytes is together."""
    found: list[Record] = []
    left = ask.limits.read_bytes_max
    while len(found) < n and left > 0:
        start, end = await ask.execute(c.GetBounds(log))
        first, stop = progress.next_gap(start, end)
        if first >= stop:
            progress.position = max(progress.position, min(first, end))
            break
        try:
            blocks = await read_blocks(ask, log, first, min(stop, first + n - len(found)), left)
        except Truncated:
            continue  # retention went past us meanwhile: go on at the new start
        except CorruptionError:
            if not found:
                raise
            break  # what is sound first; the next take says what is damaged
        if not blocks:
            break  # the log was deleted meanwhile
        for block in blocks:
            found += block.records()
            left -= len(block.payload)
            progress.position = block.offsets.stop
    return found


@endpoint("POST /logs/{log}/cursors/{cursor}/ack", errors=(404, 416))
async def acknowledge_records(ask: Ask, log: str, cursor: str, body: CursorAckBody) -> Floor:
    """Mark records as worked on, in any order."""
    ranges = ranges_of(body)
    if not ranges:
        if body.up_to is None and not body.offsets:
            raise InvalidInput("an acknowledgement names 'offsets', 'ranges' or 'up_to'")
        return Floor(floor=(await get_cursor(ask, log, cursor)).floor)
    return Floor(floor=await ask.execute(c.Acknowledge(log, cursor, ranges)))


def ranges_of(body: CursorAckBody) -> list[Range]:
    """What is acknowledged."""
    return [*joined(body.offsets), *body.ranges, *([(0, body.up_to)] if body.up_to else [])]


@endpoint("POST /logs/{log}/cursors/{cursor}/seek", errors=(404, 416))
async def seek_cursor(ask: Ask, log: str, cursor: str, body: SeekBody) -> Floor:
    """Set a cursor's floor, forwards or back."""
    return Floor(floor=await ask.execute(c.MoveCursor(log, cursor, body.offset)))
