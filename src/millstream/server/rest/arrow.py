"""Ranges of a log as a stream of Arrow record batches, if pyarrow is installed beside the server.

    offset     int64
    timestamp  timestamp[ms, UTC]
    appended   timestamp[ms, UTC]
    key        binary, nullable
    value      binary
    headers    map<string, struct<s string, i int64, d double, b bool>>: as filters see them

A block of the log becomes a batch, mostly without a copy: values and keys lie in it as Arrow wants
them. Batches are sent as they are read, and no faster than they are taken.
"""

from __future__ import annotations

import asyncio
import io
from array import array
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from millstream.format import block as stored
from millstream.log import commands as c
from millstream.server.problems import NotAcceptable
from millstream.server.rest.endpoint import ARROW, JSON

if TYPE_CHECKING:
    from millstream.command import AsyncSession
    from millstream.log.block import Block
    from millstream.record import Headers


def check_installed() -> None:
    """Refuse, with advice, where pyarrow is missing."""
    if find_spec("pyarrow") is None:
        raise NotAcceptable(
            "this server has no pyarrow, so it cannot answer in Arrow's form; install "
            f"'millstream[spark]' beside it, or ask for {JSON}",
            offered=[JSON],
        )


def stream(session: AsyncSession, log: str, start: int, stop: int) -> StreamingResponse:
    """The records of a range, as they are read."""
    return StreamingResponse(_chunks(session, log, start, stop), media_type=ARROW)


async def _chunks(session: AsyncSession, log: str, start: int, stop: int) -> AsyncIterator[bytes]:
    pa = import_module("pyarrow")
    schema, sink = _schema(pa), io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        while start < stop:
            bytes_max = session.limits.read_bytes_max
            blocks = await session.execute(c.ReadBlocks(log, start, stop, bytes_max))
            if not blocks:
                break  # the log was deleted meanwhile
            await asyncio.to_thread(_write, pa, writer, schema, blocks)
            start = blocks[-1].offsets.stop
            yield _emptied(sink)
    yield _emptied(sink)


def _emptied(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def _schema(pa: Any) -> Any:
    time = pa.timestamp("ms", tz="UTC")
    scalar = pa.struct(
        [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_())]
    )
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", time, nullable=False),
            pa.field("appended", time, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", pa.map_(pa.string(), scalar), nullable=False),
        ]
    )


def _write(pa: Any, writer: Any, schema: Any, blocks: list[Block]) -> None:
    for block in blocks:
        writer.write_batch(_batch(pa, schema, block))


def _batch(pa: Any, schema: Any, block: Block) -> Any:
    payload = stored.Block(block.payload, kind=stored.PAYLOAD)
    metadata = stored.Block(block.metadata, kind=stored.METADATA)
    time = schema.field("timestamp").type
    columns = [
        _numbers(pa, block.offsets),
        _numbers(pa, metadata.timestamps(block.skip, block.count)).view(time),
        _numbers(pa, metadata.appended(block.skip, block.count)).view(time),
        _binary(pa, metadata.buffers(stored.KEY), block, metadata.validity_bits()),
        _binary(pa, payload.buffers(stored.VALUE), block, None),
        _headers(pa, block.headers(), schema.field("headers").type),
    ]
    return pa.record_batch(columns, schema=schema)


def _numbers(pa: Any, numbers: Sequence[int]) -> Any:
    held = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(held), [None, pa.py_buffer(held)])


def _binary(
    pa: Any,
    buffers: tuple[memoryview, memoryview] | None,
    block: Block,
    validity: memoryview | None,
) -> Any:
    if buffers is None:
        return pa.nulls(block.count, pa.binary())
    offsets, data = map(pa.py_buffer, buffers)
    bits = None if validity is None else pa.py_buffer(validity)
    whole = pa.Array.from_buffers(pa.binary(), block.skip + block.count, [bits, offsets, data])
    return whole.slice(block.skip, block.count)


def _headers(pa: Any, found: Sequence[Headers], kind: Any) -> Any:
    """Maps of names to values, each value under the letter of its type; null has none."""
    ends = array("i", accumulate(map(len, found), initial=0))
    names = [name for headers in found for name in headers]
    values = [value for headers in found for value in headers.values()]
    letters = [
        pa.array([value if type(value) is python else None for value in values], field.type)
        for python, field in zip((str, int, float, bool), kind.item_type, strict=True)
    ]
    items = pa.StructArray.from_arrays(letters, fields=list(kind.item_type))
    offsets = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), items, type=kind)
