"""Keys and headers of records that are packed already: read, and replaced.

A header that is added as a note of ours leaves a record as it is that has one of that name, or that
would grow beyond the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from millstream.format import block
from millstream.format.header_cells import NO_HEADERS, check_cell, pack_headers
from millstream.format.packing import Batch, Single, pack_key
from millstream.header import Headers
from millstream.limits import Limits, too_large

_encode = msgspec.msgpack.Encoder().encode


def labels_of(records: Single | Batch) -> list[tuple[bytes | None, Headers]]:
    """The key and the headers of each record."""
    if isinstance(records, Single):
        return [(records.key, Headers(records.headers))]
    found = _metadata(records)
    keys = found.keys() if records.columns & block.KEY else [None] * records.count
    cells = found.column(block.HEADERS) or [b""] * records.count
    return list(zip(keys, map(Headers, cells), strict=True))


def relabelled(
    records: Single | Batch,
    labels: Sequence[tuple[bytes | str | None, Headers]],
    limits: Limits,
) -> Single | Batch:
    """The records with other keys and headers; too large ones are an error."""
    keys = [None if key is None else pack_key(key, limits) for key, _ in labels]
    cells = [pack_headers(some, None, limits) if some else NO_HEADERS for _, some in labels]
    if isinstance(records, Single):
        return replace(records, key=keys[0], headers=cells[0])
    has_keys = any(key is not None for key in keys)
    changed = _with_columns(records, _metadata(records), keys if has_keys else None, cells)
    size = len(changed.payload) + len(changed.metadata)
    if size > limits.batch_bytes_max:
        raise too_large("a batch", size, limits.batch_bytes_max)
    return changed


def add_header(records: Single | Batch, name: str, value: str, limits: Limits) -> Single | Batch:
    """The records, each with the header unless it has one of that name."""
    if isinstance(records, Single):
        return replace(records, headers=_added(records.headers, name, value, limits))
    found = _metadata(records)
    cells = found.column(block.HEADERS) or [b""] * records.count
    known = {cell: _added(cell, name, value, limits) for cell in set(cells)}
    keys = found.keys() if records.columns & block.KEY else None
    changed = _with_columns(records, found, keys, [known[cell] for cell in cells])
    fits = len(changed.payload) + len(changed.metadata) <= limits.batch_bytes_max
    return changed if fits else records


def _metadata(batch: Batch) -> block.Block:
    whole = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
    )
    return block.Block(whole, kind=block.METADATA)


def _with_columns(
    batch: Batch,
    found: block.Block,
    keys: Sequence[bytes | None] | None,
    cells: Sequence[bytes],
) -> Batch:
    columns, metadata = block.encode_metadata(
        timestamps=found.timestamps() if batch.columns & block.TIMESTAMP else None,
        keys=keys,
        headers=cells,
        valid=found.valid(),
    )
    crc = block.checksum(metadata)
    return replace(batch, columns=columns, metadata=metadata, metadata_crc=crc)


def _added(headers: bytes, name: str, value: str, limits: Limits) -> bytes:
    found = check_cell(headers) if headers else {}
    if name in dict(found):
        return headers
    data = _encode({**found, name: value} if isinstance(found, dict) else (*found, (name, value)))
    return data if len(data) <= limits.headers_bytes_max else headers
