"""Ranges of a log as a stream of Arrow record batches, if pyarrow is installed beside the server.

    offset     int64
    timestamp  timestamp[ms, UTC]
    appended   timestamp[ms, UTC]
    key        binary, nullable
    value      binary, nullable
    headers    list<struct<key string, value struct<s string, i int64, d double, b bool, x
    binary>>>,
               in order; a name may be repeated, which a map would not allow

A block of the log becomes one batch, mostly without a copy: a block stores values and keys in
Arrow's layout. The next block is read when the client has taken the batch before (back-pressure).
"""

from __future__ import annotations

import asyncio
import io
from array import array
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
from starlette.responses import StreamingResponse

from millstream.command import AsyncSession
from millstream.format import block as stored
from millstream.header import Headers
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.reading.arrow import (
    LETTERS,
    int64_column,
    key_column,
    lettered_columns,
    list_offsets,
    value_column,
)
from millstream.server.rest.endpoint import ARROW

_TIME = pa.timestamp("ms", tz="UTC")
_SCALAR = pa.struct([(letter, kind) for _, letter, kind in LETTERS])
_HEADER = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", _SCALAR, nullable=False)]
)
_HEADERS = pa.list_(pa.field("item", _HEADER, nullable=False))
_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("appended", _TIME, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS, nullable=False),
    ]
)


def stream(session: AsyncSession, log: str, start: int, stop: int) -> StreamingResponse:
    """Stream the records of a range while they are read."""
    return StreamingResponse(_chunks(session, log, start, stop), media_type=ARROW)


async def _chunks(session: AsyncSession, log: str, start: int, stop: int) -> AsyncIterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        while start < stop:
            bytes_max = session.limits.read_bytes_max
            blocks = await session.execute(c.ReadBlocks(log, start, stop, bytes_max))
            if not blocks:
                break  # the log was deleted meanwhile
            await asyncio.to_thread(_write, writer, blocks)
            start = blocks[-1].offsets.stop
            yield _emptied(sink)
    yield _emptied(sink)


def _emptied(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def _write(writer: Any, blocks: list[RecordBlock]) -> None:
    for block in blocks:
        writer.write_batch(_batch(block))


def _batch(block: RecordBlock) -> Any:
    payload = stored.Block(block.payload, kind=stored.PAYLOAD)
    metadata = stored.Block(block.metadata, kind=stored.METADATA)
    columns = [
        _numbers(block.offsets),
        _numbers(metadata.timestamps(block.skip, block.count)).view(_TIME),
        _numbers(metadata.appended(block.skip, block.count)).view(_TIME),
        key_column(block, metadata),
        value_column(block, metadata, payload),
        _headers(block.headers()),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _numbers(numbers: Sequence[int]) -> Any:
    return int64_column(array("q", numbers))


def _headers(rows: Sequence[Headers]) -> Any:
    """Return the headers as a column. Each value stands under the letter of its type; null has no
    letter."""
    pairs = [headers.pairs() for headers in rows]
    ends = array("i", accumulate(map(len, pairs), initial=0))
    names = [name for row in pairs for name, _ in row]
    values = [value for row in pairs for _, value in row]
    typed = pa.StructArray.from_arrays(lettered_columns(values), fields=list(_SCALAR))
    items = pa.StructArray.from_arrays([pa.array(names, pa.string()), typed], fields=list(_HEADER))
    return pa.ListArray.from_arrays(list_offsets(ends), items, type=_HEADERS)
