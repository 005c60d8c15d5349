"""Rows that Spark writes, as packed blocks: Arrow's buffers become the blocks' bodies.

Columns have Kafka's names: `value` (bytes or text), and where wanted `key`, `headers` and
`timestamp`. Nothing is done per row but for headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidInput
from millstream.format import block as stored
from millstream.format.header_cells import bad_headers, check_cell
from millstream.format.packing import Batch, Single, batch_of
from millstream.header import Headers, HeaderValue, Pair
from millstream.limits import Limits
from millstream.log.model.names import check_name
from millstream.queue.rules.sources import OWN

ROWS_PER_BLOCK = 10_000
BLOCK_BYTES = 8 * 1024 * 1024
"""About as large as a block may become: it is read whole."""

WAITING_BYTES = 64 * 1024 * 1024
"""Rows of many logs that wait in a task for more of their log."""

_encode = msgspec.msgpack.Encoder().encode


def check_columns(names: Sequence[str], known: Sequence[str], required: Sequence[str]) -> None:
    """Refuse rows without what is needed, or with what would be lost."""
    for name in required:
        if name not in names:
            raise InvalidInput(
                f"a column {name!r} is needed; there are {', '.join(names) or 'none'}"
            )
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(
            f"the column {unknown[0]!r} would not be written; expected some of {', '.join(known)}; "
            "leave it out with select(…), or put it into value or headers"
        )


def blocks_of(batch: pa.RecordBatch, limits: Limits) -> Iterator[Single | Batch]:
    """Rows as packed blocks of a fair size."""
    rows = batch.num_rows
    if not rows:
        return
    most = min(ROWS_PER_BLOCK, limits.batch_records_max)
    fair = max(1, rows * BLOCK_BYTES // max(1, batch.nbytes))
    step = min(most, fair)
    for start in range(0, rows, step):
        yield from _fitting(batch.slice(start, step), limits.batch_bytes_max // 2)


def blocks_by_log(
    found: Iterable[tuple[str, pa.RecordBatch]], limits: Limits
) -> Iterator[tuple[str, Single | Batch]]:
    """Rows and the logs that they go to, as packed blocks; a log's rows stay in order.

    Rows wait for others of their log until there is enough for a block, or too much waits in all.
    """
    waiting: dict[str, list[pa.RecordBatch]] = {}
    sizes: dict[str, int] = {}
    for log, rows in found:
        waiting.setdefault(log, []).append(rows)
        sizes[log] = sizes.get(log, 0) + rows.nbytes
        if sizes[log] >= BLOCK_BYTES:
            yield from _of_log(log, waiting.pop(log), limits)
            del sizes[log]
        if sum(sizes.values()) >= WAITING_BYTES:
            for log, some in waiting.items():
                yield from _of_log(log, some, limits)
            waiting, sizes = {}, {}
    for log, some in waiting.items():
        yield from _of_log(log, some, limits)


def rows_by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each log that the rows of a batch name."""
    topics = batch.column("topic")
    if topics.null_count:
        at = pc.index(pc.is_null(topics), True).as_py()
        raise InvalidInput(
            f"row {at} of a batch has no topic: it names the log that the row goes to"
        )
    names = topics.unique().to_pylist()
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"topic is the name of a log, a string, not {topics.type}; cast it")
        if name.startswith(OWN):
            raise InvalidInput(f"topic {name!r}: logs of the store's own are not written to")
        rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
        yield check_name(name), rows


def _of_log(
    log: str, rows: list[pa.RecordBatch], limits: Limits
) -> Iterator[tuple[str, Single | Batch]]:
    whole = pa.Table.from_batches(rows).combine_chunks().to_batches()
    for batch in whole:
        for block in blocks_of(batch, limits):
            yield log, block


def _fitting(batch: pa.RecordBatch, most: int) -> Iterator[Single | Batch]:
    """One block, or halves of it while it is too large: rows may differ much in size."""
    rows = batch.num_rows
    if rows > 1 and batch.nbytes > most:
        yield from _fitting(batch.slice(0, rows // 2), most)
        yield from _fitting(batch.slice(rows // 2), most)
    elif rows == 1:
        yield _single(batch)
    else:
        yield _packed(batch)


def _single(batch: pa.RecordBatch) -> Single:
    """A record that is stored alone has the form of one that was appended alone."""
    values, times, keys, headers = _columns(batch)
    return Single(
        values[0].as_py(),
        None if keys is None else keys[0].as_py(),
        b"" if headers is None else headers[0].as_py(),
        None if times is None else times[0].as_py(),
    )


def _packed(batch: pa.RecordBatch) -> Batch:
    values, times, keys, headers = _columns(batch)
    nulls = _bits(values) if values.null_count else None
    payload = b"".join(_bytes_column(values if nulls is None else pc.fill_null(values, b"")))
    columns = 0
    parts: list[Any] = []
    if times is not None:
        columns |= stored.TIMESTAMP
        parts.append(memoryview(times.buffers()[1])[: 8 * len(times)])
    if keys is not None:
        columns |= stored.KEY
        if keys.null_count:
            columns |= stored.KEY_VALIDITY
            parts.append(_bits(keys))
            keys = pc.fill_null(keys, b"")
        parts += _bytes_column(keys)
    if headers is not None:
        columns |= stored.HEADERS
        parts += _bytes_column(headers)
    if nulls is not None:
        columns |= stored.VALUE_VALIDITY
        parts.append(nulls)
    return batch_of(batch.num_rows, payload, columns, b"".join(parts), None)


def _columns(
    batch: pa.RecordBatch,
) -> tuple[pa.Array, pa.Array | None, pa.Array | None, pa.Array | None]:
    """Values, timestamps, keys and packed headers, checked; None for what says nothing."""
    values = batch.column("value")
    times, keys, headers = (_column(batch, name) for name in ("timestamp", "key", "headers"))
    return (
        _binary(values),
        None if times is None else _times(times),
        None if keys is None else _binary(keys),
        None if headers is None else pa.array(pack_headers(headers), pa.binary()),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column that is there and says anything."""
    if name not in batch.schema.names:
        return None
    found = batch.column(name)
    return None if found.null_count == len(found) else found


def _binary(found: pa.Array) -> pa.Array:
    """Bytes or text as bytes with offsets of 32 bits."""
    kind = found.type
    if not (
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    ):
        raise InvalidInput(f"key and value are binary or string, not {kind}; cast them")
    return found if pa.types.is_binary(kind) else found.cast(pa.binary())


def _bytes_column(found: pa.Array) -> list[bytes]:
    """A block's column of items of any size: offsets from 0 on, then the bytes."""
    count = len(found)
    _, offsets, data = found.buffers()
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets], offset=found.offset)
    first, last = ends[0].as_py(), ends[count].as_py()
    if first:
        ends = pc.subtract(ends, pa.scalar(first, pa.int32()))
    at = 4 * ends.offset
    raw = memoryview(ends.buffers()[1])[at : at + 4 * (count + 1)]
    body = memoryview(data)[first:last] if data is not None else b""
    return [raw, bytes(-len(raw) % 8), body, bytes(-len(body) % 8)]  # type: ignore[list-item]


def _bits(found: pa.Array) -> bytes:
    """Which items are there, a bit each, padded to eight bytes."""
    flags = pa.concat_arrays([pc.is_valid(found)])
    fresh = pc.and_(flags, flags)  # starts at bit 0, whatever the slice did
    size = (len(found) + 7) // 8
    raw = bytearray(memoryview(fresh.buffers()[1])[:size])
    if len(found) % 8:
        raw[-1] &= (1 << len(found) % 8) - 1
    return bytes(raw) + bytes(-size % 8)


def _times(found: pa.Array) -> pa.Array:
    """Timestamps in milliseconds, in a buffer of their own, from its first item on."""
    if not pa.types.is_timestamp(found.type):
        raise InvalidInput(f"timestamp is a timestamp, not {found.type}; cast it")
    if found.null_count:
        raise InvalidInput(
            "some rows have a timestamp and some have none: fill them, or leave the column out; "
            "records are then stamped when they are appended"
        )
    numbers = found.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return pc.add(numbers, 0)


def pack_headers(found: pa.Array) -> list[bytes]:
    """Headers packed: from Kafka's pairs, a map of texts, or a map of typed values."""
    return [_encode(one.plain()) if one else b"" for one in headers_of(found)]


def headers_of(found: pa.Array) -> list[Headers]:
    """Headers as the values that they are, in whichever of these forms they are."""
    return [_headers(one or ()) for one in found.to_pylist()]


def _headers(pairs: Iterable[Any]) -> Headers:
    headers: list[Pair] = []
    packed: bytes | None = None
    for pair in pairs:
        name, value = (pair["key"], pair["value"]) if isinstance(pair, dict) else pair
        if name is None:
            raise InvalidInput("a header has no name")
        headers.append((name, _value(name, value)))
        packed = packed or (value.get("p") if isinstance(value, dict) else None)
    return Headers(headers) if packed is None else _repeated(packed, headers)


def _repeated(packed: bytes, headers: list[Pair]) -> Headers:
    """All pairs of headers with repeated names, unless the map beside them was changed since."""
    try:
        found = check_cell(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise bad_headers(error) from error
    last = {name: _encode(value) for name, value in dict(found).items()}
    same = last == {name: _encode(value) for name, value in headers}
    return Headers(found if same else headers)


def _value(name: str, value: Any) -> HeaderValue:
    if isinstance(value, dict):
        known = [value.get(letter) for letter in "sidbx"]
        return next((one for one in known if one is not None), None)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    raise InvalidInput(f"header {name!r} is {type(value).__name__}; expected text, number or bool")
