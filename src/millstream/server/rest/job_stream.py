"""The output of a job as server-sent events: read live or later, and resumed by `Last-Event-ID`.

An event is a chunk of the output, and its id is the offset of the chunk in the log of the job. The
last event is `end` with the state of the job. A job that is tried again goes on writing to its log, so
only the end of the job ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, Struct
from starlette.responses import Response

from millstream.aio.stored_jobs import StoredJobs
from millstream.errors import MillstreamError, NotFound, Truncated
from millstream.jobs.description import SHOWN
from millstream.jobs.job_ids import JobPlace, place_of_job
from millstream.jobs.output import END_HEADER, output_of
from millstream.log.commands import GetBounds, WaitForOffset
from millstream.log.model.names import NUMBER_MAX
from millstream.queue import commands as c
from millstream.record import Record
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.jobs import on_jobs
from millstream.server.rest.live import EVENTS, Events
from millstream.server.rest.payload import Position, show_record
from millstream.server.rest.records import read_blocks

SILENCE_MS = 10_000
"""The silence after which the client gets a heartbeat."""

HEARTBEAT = b": still here\n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

endpoint = Endpoints("jobs")


class StreamQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The start of the output."""

    start: Position | None = None
    """The offset of the first chunk; default: the first chunk of the job."""


@endpoint(
    "GET /jobs/{job}/stream",
    media_types=(EVENTS,),
    headers={"Last-Event-ID": "The id of the last event that the client has"},
    errors=(404,),
)
async def stream_job(ask: Ask, job: str, query: StreamQuery) -> Response:
    """Follow the output of a job, as server-sent events.

    The data of an event is a chunk as JSON; a chunk that is neither JSON nor text is an object with
    `base64`. The event `end` has the state of the ended job, and closes the stream. A client that
    reconnects with `Last-Event-ID` gets the chunks after that event. Needs `job:read`.
    """
    asked = on_jobs(ask, "read")
    await StoredJobs(asked).get(job)  # an error must be answered before the stream begins
    if ask.request.method == "HEAD":
        return Response(headers=_HEADERS, media_type=EVENTS)
    return Events(events_of(asked, job, _first(ask, query)), headers=_HEADERS, media_type=EVENTS)


def _first(ask: Ask, query: StreamQuery) -> int:
    """Return the offset of the first chunk to send."""
    last_event = ask.request.headers.get("last-event-id", "")
    is_id = last_event.isascii() and last_event.isdigit() and len(last_event) < 19
    return int(last_event) + 1 if is_id else query.start or 0


async def events_of(ask: Ask, id: str, first: int) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a job until the job has ended, and then its state."""
    log, place = output_of(id), place_of_job(id)
    while not ask.core.closing.is_set():
        try:
            # Look at the job before its output: all chunks of an ended job are in the log.
            fate = await ask.execute(c.FindMessage(*place))
            records = await _read(ask, log, first)
        except MillstreamError:
            return  # the right is gone, or the store does not answer: the client connects again
        for record in records:
            first = record.offset + 1
            if record.headers.get(END_HEADER) is None:  # a job that is retried goes on behind it
                yield _event(record)
        if records:
            continue
        if fate.is_over or fate.state == "unknown":
            state = SHOWN.get(fate.state, "unknown")
            yield b'event: end\ndata: {"state":"%s"}\n\n' % state.encode()
            return
        if not await _news(ask, log, first, place):
            yield HEARTBEAT


async def _read(ask: Ask, log: str, first: int) -> list[Record]:
    """Return the next chunks; none if the log has none, or does not exist yet."""
    start, end = await ask.execute(GetBounds(log))
    try:
        blocks = await read_blocks(ask, log, max(first, start), min(end, NUMBER_MAX))
    except (NotFound, Truncated):
        return []  # the output expires together with the job
    return [record for block in blocks for record in block.records()]


async def _news(ask: Ask, log: str, first: int, place: JobPlace) -> bool:
    """Wait for a chunk or the end of the job; False after a silence."""
    waits = [
        asyncio.ensure_future(ask.execute(WaitForOffset(log, first, SILENCE_MS))),
        asyncio.ensure_future(ask.execute(c.WaitForMessage(*place, SILENCE_MS))),
        asyncio.ensure_future(ask.core.closing.wait()),
    ]
    try:
        ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return any(not wait.exception() and wait.result() for wait in ended)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _event(record: Record) -> bytes:
    """Encode a chunk; JSON on one line, because a line ends the data of an event."""
    shown = show_record(record)
    if shown.value is not UNSET:
        data = msgspec.json.format(bytes(shown.value), indent=-1)
    else:
        data = msgspec.json.encode({"base64": record.value})
    return b"id: %d\ndata: %s\n\n" % (record.offset, data)
