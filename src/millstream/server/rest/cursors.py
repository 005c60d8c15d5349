"""Cursors over REST: take the next records of a named reader, acknowledge, seek.

The server keeps no position between requests. A take starts at the cursor's floor, or at the
`position` of the last answer, and leaves out acknowledged records.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.aio.log import Log
from millstream.errors import CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.model.acknowledged import Range, joined
from millstream.log.progress import SECTION, CursorProgress, forgotten
from millstream.record import CursorInfo, Record
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.logs import Existed
from millstream.server.rest.payload import Position, ReadRecord, Timestamp, Wait, show_record
from millstream.server.rest.records import READ_MAX, read_blocks


class CursorList(Struct, kw_only=True):
    """The cursors of a log."""

    cursors: list[CursorInfo]


class CursorBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a new cursor starts; an existing cursor keeps its position."""

    start: Position | str = "earliest"
    """'earliest', 'latest' or an offset."""
    since: Timestamp | datetime | None = None
    """Instead of `start`, a time: milliseconds since the epoch, or ISO 8601 with a zone. The cursor
    starts at the first record whose timestamp is at or after the time."""
    section: Annotated[int, Meta(ge=1, le=2**31)] = SECTION
    """How many records a non-durable cursor acknowledges before it moves its floor."""


class TakeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many records to take, and from which position."""

    n: Annotated[int, Meta(ge=1, le=READ_MAX)] = 1
    position: Position | None = None
    """The `position` of the last answer; default: the cursor's floor."""
    wait: Wait = 0.0
    """Seconds to wait for the first record, if there is none yet."""
    on_loss: Literal["skip", "raise"] = "skip"
    """If the log deleted records that the cursor had not acknowledged: continue, or fail with
    410."""


class Taken(Struct, kw_only=True):
    """Unacknowledged records in order."""

    records: list[ReadRecord]
    position: int
    """Pass this position to the next take."""
    lost: list[tuple[int, int]] | UnsetType = UNSET
    """Half-open ranges that the log deleted before the cursor acknowledged them. Every answer lists
    them until an acknowledgement names them as `lost`."""


class CursorAckBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Records to acknowledge: offsets, half-open ranges, or everything before an offset."""

    offsets: list[Position] = []
    ranges: list[tuple[Position, Position]] = []
    up_to: Position | None = None
    lost: list[tuple[Position, Position]] = []
    """The ranges that a take returned as `lost`: the cursor counts them, and passes over them."""


class SeekBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The new floor, as an offset or as a time. Acknowledgements above the floor are forgotten."""

    offset: Position | None = None
    since: Timestamp | datetime | None = None
    """Instead of `offset`, a time: milliseconds since the epoch, or ISO 8601 with a zone. The floor
    is the first record whose timestamp is at or after the time."""


class Floor(Struct, kw_only=True):
    """The offset below which everything is acknowledged."""

    floor: int


endpoint = Endpoints("cursors")


@endpoint("GET /logs/{log}/cursors")
async def list_cursors(ask: Ask, log: str) -> CursorList:
    """List the cursors of a log with their positions."""
    return CursorList(cursors=await ask.execute(c.ListCursors(log)))


@endpoint("GET /logs/{log}/cursors/{cursor}", errors=(404,))
async def get_cursor(ask: Ask, log: str, cursor: str) -> CursorInfo:
    """Show a cursor's position and counts."""
    info = await ask.execute(c.DescribeCursor(log, cursor))
    if info is None:
        raise NotFound(f"log {log!r} has no cursor {cursor!r}", name=cursor)
    return info


@endpoint(
    "PUT /logs/{log}/cursors/{cursor}",
    description="The cursor existed",
    also={201: "The cursor was created"},
    body_optional=True,
    errors=(416,),
)
async def open_cursor(ask: Ask, log: str, cursor: str, body: CursorBody) -> Reply[CursorInfo]:
    """Create a durable cursor, if it does not exist."""
    start = body.start
    if body.since is not None:
        if start != "earliest":
            raise InvalidInput("a cursor starts at 'start' or at the time 'since'; not both")
        start = await Log(ask, log).offset_at(body.since)
    before = await ask.execute(c.DescribeCursor(log, cursor))
    info = await ask.execute(c.OpenCursor(log, cursor, start, body.section, True))
    return Reply(info, 201 if before is None else 200)


@endpoint("DELETE /logs/{log}/cursors/{cursor}")
async def delete_cursor(ask: Ask, log: str, cursor: str) -> Existed:
    """Delete a cursor."""
    return Existed(deleted=await ask.execute(c.DeleteCursor(log, cursor)))


@endpoint("POST /logs/{log}/cursors/{cursor}/take", body_optional=True, errors=(404, 410))
async def take_records(ask: Ask, log: str, cursor: str, body: TakeBody) -> Taken:
    """Take the next unacknowledged records; `wait` waits for the first.

    A take reserves nothing: two takes at the same position return the same records. Pass the
    `position` of the last answer to continue.
    """
    info = await get_cursor(ask, log, cursor)
    progress = CursorProgress(info)
    lost = info.lost_ranges
    if body.position is not None:
        progress.position = max(progress.position, body.position)
        lost = [(max(first, body.position), stop) for first, stop in lost if stop > body.position]
    # Read the bounds before the take: an append in between then ends the wait at once.
    start, end = await ask.execute(c.GetBounds(log))
    if lost and body.on_loss == "raise":
        raise forgotten(log, cursor, lost, start)
    records = await _take(ask, log, progress, body.n)
    if not records and (wait_ms := ask.wait_ms(body.wait)):
        awaited = max(progress.position, end)
        if await ask.unless_over(c.WaitForOffset(log, awaited, wait_ms)):
            records = await _take(ask, log, progress, body.n)
    return Taken(
        records=[show_record(record) for record in records],
        position=progress.position,
        lost=lost or UNSET,
    )


async def _take(ask: Ask, log: str, progress: CursorProgress, n: int) -> list[Record]:
    """Take as a cursor does; stop early when the answer's bytes are full."""
    records: list[Record] = []
    bytes_left = ask.limits.read_bytes_max
    while len(records) < n and bytes_left > 0:
        start, end = await ask.execute(c.GetBounds(log))
        first, stop = progress.next_gap(start, end)
        if first >= stop:
            progress.position = max(progress.position, min(first, end))
            break
        try:
            blocks = await read_blocks(
                ask, log, first, min(stop, first + n - len(records)), bytes_left
            )
        except Truncated:
            continue  # retention deleted records meanwhile: continue at the new start
        except CorruptionError:
            if not records:
                raise
            break  # return the sound records first; the next take reports the damage
        if not blocks:
            break  # the log was deleted meanwhile
        for block in blocks:
            records += block.records()
            bytes_left -= len(block.payload)
            progress.position = block.offsets.stop
    return records


@endpoint("POST /logs/{log}/cursors/{cursor}/ack", errors=(404, 416))
async def acknowledge_records(ask: Ask, log: str, cursor: str, body: CursorAckBody) -> Floor:
    """Acknowledge records, in any order."""
    ranges = ranges_of(body)
    if not ranges and not body.lost:
        if body.up_to is None and not body.offsets:
            raise InvalidInput("an acknowledgement needs 'offsets', 'ranges', 'up_to' or 'lost'")
        return Floor(floor=(await get_cursor(ask, log, cursor)).floor)
    command = c.Acknowledge(log, cursor, ranges, lost=list(body.lost))
    return Floor(floor=await ask.execute(command))


def ranges_of(body: CursorAckBody) -> list[Range]:
    """Return the acknowledged ranges of a body."""
    return [*joined(body.offsets), *body.ranges, *([(0, body.up_to)] if body.up_to else [])]


@endpoint("POST /logs/{log}/cursors/{cursor}/seek", errors=(404, 416))
async def seek_cursor(ask: Ask, log: str, cursor: str, body: SeekBody) -> Floor:
    """Set a cursor's floor, forwards or backwards, to an offset or to a time."""
    offset = body.offset
    if body.since is not None and offset is None:
        offset = await Log(ask, log).offset_at(body.since)
    elif offset is None or body.since is not None:
        raise InvalidInput("a cursor moves to an 'offset' or to the time 'since'")
    return Floor(floor=await ask.execute(c.MoveCursor(log, cursor, offset)))
