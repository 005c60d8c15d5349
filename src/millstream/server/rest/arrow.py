"""Ranges of a log as a stream of Arrow record batches, for whoever has pyarrow beside the server.

    offset     int64
    timestamp  timestamp[ms, UTC]
    appended   timestamp[ms, UTC]
    key        binary, nullable
    value      binary
    headers    map<string, struct<s string, i int64, d double, b bool>>: as filters see them

A block of the log becomes a batch; batches are sent as they are read.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from millstream.log import commands as c
from millstream.server.problems import NotAcceptable
from millstream.server.rest.endpoint import ARROW, JSON

if TYPE_CHECKING:
    from millstream.command import AsyncSession
    from millstream.log.block import Block


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
            for block in blocks:
                writer.write_batch(_batch(pa, schema, block))
                start = block.offsets.stop
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


def _batch(pa: Any, schema: Any, block: Block) -> Any:
    records = block.records()
    columns = [
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.appended for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [[(name, _scalar(value)) for name, value in record.headers.items()] for record in records],
    ]
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _scalar(value: Any) -> dict[str, Any]:
    """A header's value under the letter of its type; null has none."""
    letter = {str: "s", bool: "b", int: "i", float: "d"}.get(type(value))
    found: dict[str, Any] = dict.fromkeys("sidb")
    if letter is not None:
        found[letter] = value
    return found
