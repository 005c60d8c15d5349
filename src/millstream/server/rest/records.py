"""Records of a log over REST: append records, read a range or a single record, wait for more."""

from __future__ import annotations

import json
from datetime import datetime
from importlib.util import find_spec
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from millstream.aio.log import Log
from millstream.aio.partitioned import PartitionedLog
from millstream.errors import InvalidInput, NotFound, Partitioned, Truncated
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import NUMBER_MAX
from millstream.partitioning import PARTITIONS_MAX, partition_name
from millstream.record import Item, PartitionOffset, Producer, Record
from millstream.server.problems import NotAcceptable
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import ANY, ARROW, JSON, Endpoints
from millstream.server.rest.logs import get_log
from millstream.server.rest.payload import (
    NewRecord,
    Position,
    ReadRecord,
    Timestamp,
    Wait,
    check_only_listed,
    item_of,
    item_of_raw,
    media_type_of,
    show_record,
)

READ_DEFAULT = 1_000
READ_MAX = 10_000
HEADER_CHARS_MAX = 8_000
"""Longest record headers in an HTTP header of the answer; longer ones are shown in JSON only."""

RAW_HEADERS = {
    "Millstream-Key": "The record's key, percent-encoded, beside a raw body",
    "Millstream-Headers": "The record's headers as JSON, an object or pairs, beside a raw body",
    "Millstream-Timestamp": "The record's timestamp in ms, beside a raw body",
    "Millstream-Null": "Whether the value is null, beside an empty body",
}


class ProducerBody(Producer, frozen=True, forbid_unknown_fields=True):
    """The producer and the sequence of this append: a repeat is stored once."""


class AppendBody(NewRecord, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One record, or several under `records`, which are appended atomically."""

    records: list[NewRecord] | None = None
    expect_end: Position | None = None
    """Append only if the log's end is at this offset."""
    producer: ProducerBody | None = None


class AppendQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters beside a raw body; a JSON body has them as fields."""

    expect_end: Position | None = None
    producer: str | None = None
    sequence: Position | None = None
    epoch: Position = 0


class Appended(Struct, kw_only=True, omit_defaults=True):
    """The offsets of appended records: `count` offsets from `offset` on, or `places`."""

    offset: int
    count: int
    places: list[PartitionOffset] | UnsetType = UNSET
    """For a log with partitions: partition and offset of each record; `offset` is the first
    one's."""


class ReadQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which records to read."""

    start: Position | None = None
    """The first offset; default: the log's start."""
    since: Timestamp | datetime | None = None
    """Instead of `start`, a time: milliseconds since the epoch, or ISO 8601 with a zone. Reading
    starts at the first record whose timestamp is at or after the time."""
    last: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None
    """Instead of `start`, a number: read the last records of the log."""
    stop: Position | None = None
    """Read up to this offset, exclusive."""
    limit: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None
    """Most records. JSON: 1,000 by default and up to 10,000; Arrow: unlimited."""
    wait: Wait = 0.0
    """Seconds to wait for the first record, if there is none yet."""
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)] | None = None
    """For a log with partitions: which partition to read."""


class TimeQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The time of the record to find."""

    since: Timestamp | datetime
    """Milliseconds since the epoch, or ISO 8601 with a zone."""


class FoundOffset(Struct, kw_only=True):
    """The offset for a time."""

    offset: int
    """The first record whose timestamp is at or after the time; without one, the end of the log."""
    end_offset: int


class RecordPage(Struct, kw_only=True):
    """Records in order."""

    records: list[ReadRecord]
    next: int
    """Pass this as `start` to continue."""
    start_offset: int
    end_offset: int


endpoint = Endpoints("records")


@endpoint(
    "POST /logs/{log}/records", status=201, raw=(ANY,), headers=RAW_HEADERS, errors=(409, 423)
)
async def append_records(
    ask: Ask, log: str, query: AppendQuery, body: AppendBody | None
) -> Appended:
    """Append a record or a batch; the answer comes when the records are durable.

    A JSON body holds one record (`value` or `base64`) or several (`records`). A body of another
    media type is one record as is, with its content type. A log with partitions spreads records by
    their keys; `places` shows the partition and offset of each record.
    """
    if body is None:
        items = [item_of_raw(ask.data, ask.sent)]
        expect_end, producer = query.expect_end, _raw_producer(query)
    else:
        if query != AppendQuery():
            raise InvalidInput("beside a JSON body, expect_end and producer are fields of the body")
        items, expect_end, producer = items_of(body), body.expect_end, body.producer
    try:
        return await _append(Log(ask, log), items, expect_end, producer)
    except Partitioned as error:
        if expect_end is not None or producer is not None or error.data.get("log") != log:
            raise
        return await _append_spread(ask, log, items, error.partitions)


async def _append(
    log: Log, items: list[Item], expect_end: int | None, producer: Producer | None
) -> Appended:
    if len(items) != 1:
        offsets = await log.append_many(items, expect_end=expect_end, producer=producer)
        return Appended(offset=offsets.start, count=len(offsets))
    (item,) = items
    offset = await log.append(
        item.value,
        key=item.key,
        headers=item.headers,
        timestamp=item.timestamp,
        expect_end=expect_end,
        producer=producer,
    )
    return Appended(offset=offset, count=1)


async def _append_spread(ask: Ask, log: str, items: list[Item], partitions: int) -> Appended:
    """Append to a log with partitions, by key.

    `expect_end` and producers are refused before: they need the name of a single partition.
    """
    places = await PartitionedLog(ask, log, partitions, follows=True).append_many(items)
    return Appended(offset=places[0].offset if places else 0, count=len(places), places=places)


def items_of(body: AppendBody) -> list[Item]:
    """Return the records of a body: the body itself, or the listed records."""
    if body.records is None:
        return [item_of(body)]
    check_only_listed(body, NewRecord, "record")
    return [item_of(record, f"records[{i}]: ") for i, record in enumerate(body.records)]


def _raw_producer(query: AppendQuery) -> Producer | None:
    if (query.producer is None) != (query.sequence is None):
        raise InvalidInput("a producer needs a sequence: ?producer=NAME&sequence=NUMBER")
    if query.producer is None or query.sequence is None:
        return None
    return Producer(query.producer, query.sequence, query.epoch)


@endpoint("GET /logs/{log}/records", media_types=(ARROW,), errors=(404, 406, 410))
async def read_records(ask: Ask, log: str, query: ReadQuery) -> RecordPage | Response:
    """Read a range of records; `wait` waits for the first.

    For a log with partitions, `partition` selects the partition.

    An answer holds up to `limit` records and about 4 MiB; continue at `next`. With
    `Accept: application/vnd.apache.arrow.stream` the answer is a stream of Arrow record batches.
    """
    form = accepted(ask.request.headers.get("accept", ""), (JSON, ARROW))
    if form == ARROW and find_spec("pyarrow") is None:
        raise NotAcceptable(
            "this server has no pyarrow and cannot answer in Arrow's format; install "
            f"'millstream[spark]' on the server, or ask for {JSON}",
            offered=[JSON],
        )
    if query.partition is not None:
        log = partition_name(log, query.partition)
    start, end = await ask.execute(c.GetBounds(log))
    first = await _first_of(ask, log, query, start, end)
    if first >= end and (wait_ms := ask.wait_ms(query.wait)):
        await ask.unless_over(c.WaitForOffset(log, first, wait_ms))
        start, end = await ask.execute(c.GetBounds(log))
    if not end:
        await get_log(ask, log)  # raises if the log does not exist
    stop = end if query.stop is None else min(end, query.stop)
    if form == ARROW:
        stop = stop if query.limit is None else min(stop, first + query.limit)
        # An error must be raised before the stream starts: the status cannot change later.
        await read_blocks(ask, log, first, min(stop, first + 1), 0)
        from millstream.server.rest import arrow  # pyarrow is optional

        return arrow.stream(ask, log, first, stop)
    stop = min(stop, first + min(query.limit or READ_DEFAULT, READ_MAX))
    blocks = await read_blocks(ask, log, first, stop)
    records = [show_record(record) for block in blocks for record in block.records()]
    following = records[-1].offset + 1 if records else first
    return RecordPage(records=records, next=following, start_offset=start, end_offset=end)


async def _first_of(ask: Ask, log: str, query: ReadQuery, start: int, end: int) -> int:
    """Return the offset at which a read begins."""
    if sum(named is not None for named in (query.start, query.since, query.last)) > 1:
        raise InvalidInput(
            "reading begins at 'start', at the time 'since' or with the 'last' records"
        )
    if query.since is not None:
        return await Log(ask, log).offset_at(query.since)
    if query.last is not None:
        return max(start, end - query.last)
    return start if query.start is None else query.start


@endpoint("GET /logs/{log}/offset", errors=(404,))
async def find_offset(ask: Ask, log: str, query: TimeQuery) -> FoundOffset:
    """Find the first record whose timestamp is at or after a time.

    A record without a timestamp of its own has the time of its append.
    """
    _, end = await ask.execute(c.GetBounds(log))
    if not end:
        await get_log(ask, log)  # raises if the log does not exist
    return FoundOffset(offset=await Log(ask, log).offset_at(query.since), end_offset=end)


async def read_blocks(
    ask: Ask, log: str, start: int, stop: int, bytes_max: int = NUMBER_MAX
) -> list[RecordBlock]:
    """Read the first blocks of a range; the core limits their bytes, too."""
    return await ask.execute(c.ReadBlocks(log, start, stop, bytes_max)) if start < stop else []


@endpoint("GET /logs/{log}/records/{offset}", media_types=(ANY,), errors=(404, 406, 410))
async def get_record(ask: Ask, log: str, offset: int) -> ReadRecord | Response:
    """Read a record: its value as the body, or the complete record as JSON.

    With `Accept: application/json` the answer is JSON. Otherwise it is the value with its content
    type; `Millstream-Offset`, `-Timestamp`, `-Key` (percent-encoded) and `-Headers` (JSON) are HTTP
    headers.
    """
    form = accepted(ask.request.headers.get("accept", ""), (ANY, JSON))
    try:
        blocks = await read_blocks(ask, log, offset, min(offset + 1, 2**63 - 1))
    except Truncated:
        blocks = []
        start, _ = await ask.execute(c.GetBounds(log))
        if offset < start:
            raise
    if not blocks:
        await get_log(ask, log)
        raise NotFound(f"log {log!r} has no record at {offset}", name=log, offset=offset)
    record = blocks[0].records()[0]
    return show_record(record) if form == JSON else raw_response(record)


def raw_response(record: Record) -> Response:
    """Return a value as a body; a browser must not run it as a page of this server's origin."""
    headers = {
        "millstream-offset": str(record.offset),
        "millstream-timestamp": str(record.timestamp),
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    if record.key is not None and 3 * len(record.key) <= HEADER_CHARS_MAX:
        headers["millstream-key"] = quote(record.key, safe="")
    if record.headers:
        shown = msgspec.json.encode(record.headers.shown())  # NaN becomes JSON's null
        text = json.dumps(msgspec.json.decode(shown), separators=(",", ":"))
        if len(text) <= HEADER_CHARS_MAX:
            headers["millstream-headers"] = text
    headers["content-type"] = media_type_of(record.headers)
    if record.value is None:
        headers["millstream-null"] = "true"
    return Response(record.value or b"", headers=headers)


def accepted(accept: str, offered: tuple[str, ...]) -> str:
    """Choose the offered media type that the client prefers; the first if it has no preference."""
    wishes = []
    for position, choice in enumerate(accept.split(",")):
        kind, *settings = (field.strip().lower() for field in choice.split(";"))
        weight = next((s[2:] for s in settings if s.startswith("q=")), "1")
        try:
            wishes.append((-float(weight), position, kind))
        except ValueError:
            continue
    for weight_, _, kind in sorted(wishes):
        if weight_ == 0.0:
            continue
        if kind in offered:
            return kind
        if kind in ("", "*/*") or ANY in offered:
            return offered[0]
        for form in offered:
            if kind.endswith("/*") and form.startswith(kind[:-1]):
                return form
    raise NotAcceptable(
        f"the answer can only be {' or '.join(offered)}; accept one of these", offered=list(offered)
    )
