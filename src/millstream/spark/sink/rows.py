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
"""The target size of a block: readers load a block as a whole."""

WAITING_BYTES = 64 * 1024 * 1024
"""The most bytes of rows that wait in a task for more rows of their log."""

_encode = msgspec.msgpack.Encoder().encode


def check_columns(names: Sequence[str], expected: Sequence[str], required: Sequence[str]) -> None:
    """Refuse rows without a required column, or with a column that would be lost."""
    for name in required:
        if name not in names:
            raise InvalidInput(
                f"a column {name!r} is needed; there are {', '.join(names) or 'none'}"
            )
    if unknown := [name for name in names if name not in expected]:
        raise InvalidInput(
            f"the column {unknown[0]!r} would not be written; expected some of {', '.join(expected)}; "
            "leave it out with select(…), or put it into value or headers"
        )


def blocks_of(batch: pa.RecordBatch, limits: Limits) -> Iterator[Single | Batch]:
    """Rows as packed blocks of a fair size."""
    rows = batch.num_rows
    if not rows:
        return
    rows_max = min(ROWS_PER_BLOCK, limits.batch_records_max)
    fair = max(1, rows * BLOCK_BYTES // max(1, batch.nbytes))
    step = min(rows_max, fair)
    for start in range(0, rows, step):
        yield from _fitting(batch.slice(start, step), limits.batch_bytes_max // 2)


def blocks_by_log(
    log_rows: Iterable[tuple[str, pa.RecordBatch]], limits: Limits
) -> Iterator[tuple[str, Single | Batch]]:
    """Yield blocks of rows with their logs; the rows of a log stay in order.

    Rows wait for more rows of their log until a block is full, or until too many bytes wait in
    total.
    """
    waiting: dict[str, list[pa.RecordBatch]] = {}
    sizes: dict[str, int] = {}
    for log, rows in log_rows:
        waiting.setdefault(log, []).append(rows)
        sizes[log] = sizes.get(log, 0) + rows.nbytes
        if sizes[log] >= BLOCK_BYTES:
            yield from _of_log(log, waiting.pop(log), limits)
            del sizes[log]
        if sum(sizes.values()) >= WAITING_BYTES:
            for log, batches in waiting.items():
                yield from _of_log(log, batches, limits)
            waiting, sizes = {}, {}
    for log, batches in waiting.items():
        yield from _of_log(log, batches, limits)


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
    joined = pa.Table.from_batches(rows).combine_chunks().to_batches()
    for batch in joined:
        for block in blocks_of(batch, limits):
            yield log, block


def _fitting(batch: pa.RecordBatch, bytes_max: int) -> Iterator[Single | Batch]:
    """Yield a block, or halve the rows while the block is too large: rows differ in size."""
    rows = batch.num_rows
    if rows > 1 and batch.nbytes > bytes_max:
        yield from _fitting(batch.slice(0, rows // 2), bytes_max)
        yield from _fitting(batch.slice(rows // 2), bytes_max)
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
    buffers: list[Any] = []
    if times is not None:
        columns |= stored.TIMESTAMP
        buffers.append(memoryview(times.buffers()[1])[: 8 * len(times)])
    if keys is not None:
        columns |= stored.KEY
        if keys.null_count:
            columns |= stored.KEY_VALIDITY
            buffers.append(_bits(keys))
            keys = pc.fill_null(keys, b"")
        buffers += _bytes_column(keys)
    if headers is not None:
        columns |= stored.HEADERS
        buffers += _bytes_column(headers)
    if nulls is not None:
        columns |= stored.VALUE_VALIDITY
        buffers.append(nulls)
    return batch_of(batch.num_rows, payload, columns, b"".join(buffers), None)


def _columns(
    batch: pa.RecordBatch,
) -> tuple[pa.Array, pa.Array | None, pa.Array | None, pa.Array | None]:
    """Return checked values, timestamps, keys and packed headers; None for a column of nulls."""
    values = batch.column("value")
    times, keys, headers = (_column(batch, name) for name in ("timestamp", "key", "headers"))
    return (
        _binary(values),
        None if times is None else _times(times),
        None if keys is None else _binary(keys),
        None if headers is None else pa.array(pack_headers(headers), pa.binary()),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column, or None if it is missing or has only nulls."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return None if column.null_count == len(column) else column


def _binary(column: pa.Array) -> pa.Array:
    """Return bytes or text as bytes with 32-bit offsets."""
    kind = column.type
    if not (
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    ):
        raise InvalidInput(f"key and value are binary or string, not {kind}; cast them")
    return column if pa.types.is_binary(kind) else column.cast(pa.binary())


def _bytes_column(column: pa.Array) -> list[bytes]:
    """Return a block's column of items of any size: offsets from 0 on, then the bytes."""
    count = len(column)
    _, offsets, data = column.buffers()
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets], offset=column.offset)
    first, last = ends[0].as_py(), ends[count].as_py()
    if first:
        ends = pc.subtract(ends, pa.scalar(first, pa.int32()))
    at = 4 * ends.offset
    raw = memoryview(ends.buffers()[1])[at : at + 4 * (count + 1)]
    body = memoryview(data)[first:last] if data is not None else b""
    return [raw, bytes(-len(raw) % 8), body, bytes(-len(body) % 8)]  # type: ignore[list-item]


def _bits(column: pa.Array) -> bytes:
    """Return the validity of the items, a bit each, padded to eight bytes."""
    flags = pa.concat_arrays([pc.is_valid(column)])
    fresh = pc.and_(flags, flags)  # starts at bit 0, whatever the slice did
    size = (len(column) + 7) // 8
    raw = bytearray(memoryview(fresh.buffers()[1])[:size])
    if len(column) % 8:
        raw[-1] &= (1 << len(column) % 8) - 1
    return bytes(raw) + bytes(-size % 8)


def _times(column: pa.Array) -> pa.Array:
    """Return timestamps in milliseconds, in a separate buffer."""
    if not pa.types.is_timestamp(column.type):
        raise InvalidInput(f"timestamp is a timestamp, not {column.type}; cast it")
    if column.null_count:
        raise InvalidInput(
            "some rows have a timestamp and some have none: fill them, or leave the column out; "
            "records are then stamped when they are appended"
        )
    numbers = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return pc.add(numbers, 0)


def pack_headers(column: pa.Array) -> list[bytes]:
    """Return packed headers from Kafka's pairs, a map of texts, or a map of typed values."""
    return [_encode(headers.plain()) if headers else b"" for headers in headers_of(column)]


def headers_of(column: pa.Array) -> list[Headers]:
    """Return headers from Kafka's pairs, a map of texts, or a map of typed values."""
    if not _are_headers(column.type):
        raise InvalidInput(
            "headers is a map with names of type string, or an array of structs with key and value, "
            f"not {column.type}; cast it"
        )
    return [_headers(pairs or ()) for pairs in column.to_pylist()]


def _are_headers(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_map(kind):
        name = kind.key_type
    elif types.is_list(kind) and types.is_struct(kind.value_type):
        fields = {field.name: field.type for field in kind.value_type}
        name = fields.get("key", pa.null()) if "value" in fields else pa.null()
    else:
        return False
    return bool(types.is_string(name) or types.is_large_string(name))


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
        all_pairs = check_cell(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise bad_headers(error) from error
    last = {name: _encode(value) for name, value in dict(all_pairs).items()}
    is_unchanged = last == {name: _encode(value) for name, value in headers}
    return Headers(all_pairs if is_unchanged else headers)


def _value(name: str, value: Any) -> HeaderValue:
    if isinstance(value, dict):
        typed = [value.get(letter) for letter in "sidbx"]
        return next((scalar for scalar in typed if scalar is not None), None)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    raise InvalidInput(f"header {name!r} is {type(value).__name__}; expected text, number or bool")
