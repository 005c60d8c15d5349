"""Cursors: how far a named reader of a log has come; take what is next, acknowledge, seek.

The server keeps no position between requests. A take begins at the cursor's floor, or at the
`position` that the take before answered; what was acknowledged is left out.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from millstream.errors import CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.log.marks import joined
from millstream.log.progress import SECTION, Progress
from millstream.record import CursorInfo, Record
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint, Reply
from millstream.server.rest.logs import Existed
from millstream.server.rest.payload import Position, ReadRecord, show_record
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
    wait: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds to wait for the first record, if there is none yet."""


class Taken(Struct, kw_only=True):
    """Unacknowledged records in order."""

    records: list[ReadRecord]
    position: int
    """Take with this to go on after them."""


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


async def list_cursors(ask: Ask) -> CursorList:
    """How each cursor stands."""
    return CursorList(cursors=await ask.execute(c.ListCursors(ask.name("log"))))


async def get_cursor(ask: Ask) -> CursorInfo:
    """How a cursor stands."""
    log, cursor = ask.name("log"), ask.name("cursor")
    info = await ask.execute(c.DescribeCursor(log, cursor))
    if info is None:
        raise NotFound(f"log {log!r} has no cursor {cursor!r}", name=cursor)
    return info


async def open_cursor(ask: Ask) -> Reply:
    """Make a durable cursor, unless there is one."""
    log, cursor, body = ask.name("log"), ask.name("cursor"), ask.body
    before = await ask.execute(c.DescribeCursor(log, cursor))
    info = await ask.execute(c.OpenCursor(log, cursor, body.start, body.section, True))
    return Reply(info, 201 if before is None else 200)


async def delete_cursor(ask: Ask) -> Existed:
    """Forget a cursor."""
    command = c.DeleteCursor(ask.name("log"), ask.name("cursor"))
    return Existed(deleted=await ask.execute(command))


async def take(ask: Ask) -> Taken:
    """The next unacknowledged records."""
    log, body = ask.name("log"), ask.body
    progress = Progress(await get_cursor(ask))
    if body.position is not None:
        progress.position = max(progress.position, body.position)
    _, end = await ask.execute(c.GetBounds(log))  # before: what comes meanwhile ends the wait
    found = await _take(ask, log, progress, body.n)
    if not found and (wait_ms := ask.wait_ms(body.wait)):
        awaited = max(progress.position, end)
        if await ask.unless_over(c.WaitForOffset(log, awaited, wait_ms)):
            found = await _take(ask, log, progress, body.n)
    return Taken(records=[show_record(one) for one in found], position=progress.position)


async def _take(ask: Ask, log: str, progress: Progress, n: int) -> list[Record]:
    """As a cursor takes; ends early when an answer's worth of bytes is together."""
    found: list[Record] = []
    left = ask.session.limits.read_bytes_max
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


async def acknowledge(ask: Ask) -> Floor:
    """Mark records as worked on."""
    log, cursor, body = ask.name("log"), ask.name("cursor"), ask.body
    ranges = joined(body.offsets) + body.ranges
    if body.up_to:
        ranges.append((0, body.up_to))
    if not ranges:
        if body.up_to is None and not body.offsets:
            raise InvalidInput("an acknowledgement names 'offsets', 'ranges' or 'up_to'")
        return Floor(floor=(await get_cursor(ask)).floor)
    return Floor(floor=await ask.execute(c.Acknowledge(log, cursor, ranges)))


async def seek(ask: Ask) -> Floor:
    """Set the floor."""
    command = c.MoveCursor(ask.name("log"), ask.name("cursor"), ask.body.offset)
    return Floor(floor=await ask.execute(command))


_CURSOR = "/logs/{log}/cursors/{cursor}"

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/logs/{log}/cursors",
        name="listCursors",
        summary="How each cursor of a log stands",
        run=list_cursors,
        tag="cursors",
        answers=(Answer(CursorList),),
    ),
    Endpoint(
        method="GET",
        path=_CURSOR,
        name="getCursor",
        summary="How a cursor stands",
        run=get_cursor,
        tag="cursors",
        answers=(Answer(CursorInfo),),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path=_CURSOR,
        name="openCursor",
        summary="Make a durable cursor, unless there is one",
        run=open_cursor,
        tag="cursors",
        body=CursorBody,
        body_optional=True,
        answers=(
            Answer(CursorInfo, "It existed"),
            Answer(CursorInfo, "It was made", status=201),
        ),
        errors=(416,),
    ),
    Endpoint(
        method="DELETE",
        path=_CURSOR,
        name="deleteCursor",
        summary="Forget a cursor",
        run=delete_cursor,
        tag="cursors",
        answers=(Answer(Existed),),
    ),
    Endpoint(
        method="POST",
        path=f"{_CURSOR}/take",
        name="takeRecords",
        summary="The next unacknowledged records, waiting for the first if asked",
        detail="Nothing is reserved: two takes at the same position answer the same records. "
        "Hand in the `position` of the answer before to go on.",
        run=take,
        tag="cursors",
        body=TakeBody,
        body_optional=True,
        answers=(Answer(Taken),),
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path=f"{_CURSOR}/ack",
        name="acknowledgeRecords",
        summary="Mark records as worked on, in any order",
        run=acknowledge,
        tag="cursors",
        body=CursorAckBody,
        answers=(Answer(Floor),),
        errors=(404, 416),
    ),
    Endpoint(
        method="POST",
        path=f"{_CURSOR}/seek",
        name="seekCursor",
        summary="Set a cursor's floor, forwards or back",
        run=seek,
        tag="cursors",
        body=SeekBody,
        answers=(Answer(Floor),),
        errors=(404, 416),
    ),
)
