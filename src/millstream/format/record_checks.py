"""Checks of records that a client has packed, before they are stored unchanged.

Every fault that a reader would meet is refused: wrong checksums, columns that do not fill their block,
headers that do not decode. The checks work on complete columns, not on single records.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.errors import CorruptionError, InvalidInput
from millstream.format import block
from millstream.format.header_cells import array_of, bad_headers, check_cell, check_cells
from millstream.format.packing import TIMESTAMP_MS_MAX, Batch, Single, check_timestamp
from millstream.limits import Limits, too_large

_HANDED_IN = block.TIMESTAMP | block.KEY | block.KEY_VALIDITY | block.HEADERS | block.VALUE_VALIDITY
"""Columns of metadata that a client may send; the store sets the append time."""

_U32_MAX = 2**32 - 1


def check_packed(records: Single | Batch, limits: Limits) -> None:
    """Refuse records that `packing` could not have made: `InvalidInput`, or `TooLarge`."""
    if isinstance(records, Single):
        _check_single(records, limits)
    else:
        _check_batch(records, limits)
    if records.timestamp_ms is not None:
        check_timestamp(records.timestamp_ms)


def _check_single(single: Single, limits: Limits) -> None:
    _check_size("a value", len(single.value or b""), limits.value_bytes_max)
    _check_size("a key", len(single.key or b""), limits.key_bytes_max)
    _check_size("a record's headers", len(single.headers), limits.headers_bytes_max)
    if single.headers:
        try:
            check_cell(single.headers)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise bad_headers(error) from error


def _check_batch(batch: Batch, limits: Limits) -> None:
    if batch.count < 1:
        raise InvalidInput(f"a batch of {batch.count} records; it has at least one")
    _check_size("a batch", batch.count, limits.batch_records_max, unit="records")
    _check_size("a batch", len(batch.payload) + len(batch.metadata), limits.batch_bytes_max)
    if not 0 <= batch.columns <= _HANDED_IN or batch.columns & ~_HANDED_IN:
        raise InvalidInput(f"a batch with the columns {batch.columns}; known are {_HANDED_IN}")
    if batch.columns & block.KEY_VALIDITY and not batch.columns & block.KEY:
        raise InvalidInput("a batch that says which records have keys, but has no keys")
    payload = _place(batch.payload, batch.payload_crc, batch.count, block.PAYLOAD, block.VALUE)
    metadata = _place(
        batch.metadata, batch.metadata_crc, batch.count, block.METADATA, batch.columns
    )
    _check_cells(metadata, payload, limits)
    if batch.columns & block.TIMESTAMP:
        _check_times(metadata.timestamps())


def check_stored(metadata: block.Block, payload: block.Block, limits: Limits) -> None:
    """Refuse a stored block of another store whose records could not have been stored here.

    The caller checks the size: a block that is too large for this store can be cut.
    """
    count, columns = metadata.count, metadata.header.columns
    if count < 1:
        raise InvalidInput("a block without records")
    if (
        columns & ~(_HANDED_IN | block.APPENDED | block.IDS)
        or payload.header.columns != block.VALUE
    ):
        raise InvalidInput(f"a block with the columns {columns} and {payload.header.columns}")
    _check_cells(metadata, payload, limits)
    if columns & block.KEY_VALIDITY:
        _check_absent_keys(metadata)
    header = metadata.header
    times: list[int] = [header.timestamp_ms, header.appended_ms]
    for column, numbers in (
        (block.TIMESTAMP, metadata.timestamps),
        (block.APPENDED, metadata.appended),
    ):
        if columns & column:
            column_times = numbers()
            times += (min(column_times), max(column_times))
    _check_times(times)


def _check_times(times: Sequence[int]) -> None:
    low, high = min(times), max(times)
    if low < 0 or high > TIMESTAMP_MS_MAX:
        raise InvalidInput(
            f"a time is milliseconds since the epoch, up to the year 9999; there are {low} to {high}"
        )


def _check_absent_keys(metadata: block.Block) -> None:
    keys, valid = metadata.column(block.KEY), metadata.validity()
    if keys is None or valid is None:
        raise InvalidInput("a block that says which records have keys, but has no keys")
    if any(key and not is_valid for key, is_valid in zip(keys, valid, strict=True)):
        raise InvalidInput("a block with the key of a record that has none")


def _place(body: bytes, crc: int, count: int, kind: int, columns: int) -> block.Block:
    if not 0 <= crc <= _U32_MAX:
        raise InvalidInput(f"a checksum has 32 bits, not {crc}")
    data = block.place(body, kind=kind, count=count, columns=columns, body_crc=crc)
    try:
        return block.Block(data, kind=kind)
    except CorruptionError as error:
        raise InvalidInput(f"a batch does not hold together: {error.message}") from error


def _check_nulls(metadata: block.Block, payload: block.Block) -> None:
    values, valid = payload.column(block.VALUE) or [], metadata.valid() or []
    if any(value and not is_valid for value, is_valid in zip(values, valid, strict=True)):
        raise InvalidInput("a block with the value of a record whose value is null")


def _check_cells(metadata: block.Block, payload: block.Block, limits: Limits) -> None:
    _check_column(payload, block.VALUE, "a value", limits.value_bytes_max)
    _check_column(metadata, block.KEY, "a key", limits.key_bytes_max)
    _check_column(metadata, block.HEADERS, "a record's headers", limits.headers_bytes_max)
    if metadata.header.columns & block.HEADERS:
        _check_headers(metadata)
    if metadata.header.columns & block.VALUE_VALIDITY:
        _check_nulls(metadata, payload)


def _check_column(checked: block.Block, column: int, name: str, limit: int) -> None:
    """Check single cells only if the complete column is larger than the limit."""
    buffers = checked.buffers(column)
    if buffers is None or buffers[1].nbytes <= limit:
        return
    _check_size(name, max(map(len, checked.column(column) or [b""])), limit)


def _check_headers(metadata: block.Block) -> None:
    """Check all headers as one array: a cell must hold exactly one element, so sizes are compared."""
    cells = [cell for cell in metadata.column(block.HEADERS) or [] if cell]
    data = array_of(cells)
    try:
        sizes = check_cells(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise bad_headers(error) from error
    if sizes != list(map(len, cells)):
        raise InvalidInput("a batch whose headers do not end where their offsets say")


def _check_size(name: str, size: int, limit: int, unit: str = "bytes") -> None:
    if size > limit:
        raise too_large(name, size, limit, unit)
