"""Keys and headers of packed records: read, replace, and add.

`add_header` does not change a record that has a header of that name, or that would exceed a limit.
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
    """Return the key and the headers of each record."""
    if isinstance(records, Single):
        return [(records.key, Headers(records.headers))]
    metadata = _metadata(records)
    keys = metadata.keys() if records.columns & block.KEY else [None] * records.count
    cells = metadata.column(block.HEADERS) or [b""] * records.count
    return list(zip(keys, map(Headers, cells), strict=True))


def relabelled(
    records: Single | Batch,
    labels: Sequence[tuple[bytes | str | None, Headers]],
    limits: Limits,
) -> Single | Batch:
    """Replace keys and headers of records; raise `TooLarge` for too large ones."""
    keys = [None if key is None else pack_key(key, limits) for key, _ in labels]
    cells = [
        pack_headers(headers, None, limits) if headers else NO_HEADERS for _, headers in labels
    ]
    if isinstance(records, Single):
        return replace(records, key=keys[0], headers=cells[0])
    has_keys = any(key is not None for key in keys)
    changed = _with_columns(records, _metadata(records), keys if has_keys else None, cells)
    size = len(changed.payload) + len(changed.metadata)
    if size > limits.batch_bytes_max:
        raise too_large("a batch", size, limits.batch_bytes_max)
    return changed


def add_header(records: Single | Batch, name: str, value: str, limits: Limits) -> Single | Batch:
    """Add a header to each record without a header of that name."""
    if isinstance(records, Single):
        return replace(records, headers=_added(records.headers, name, value, limits))
    metadata = _metadata(records)
    cells = metadata.column(block.HEADERS) or [b""] * records.count
    new_cells = {cell: _added(cell, name, value, limits) for cell in set(cells)}
    keys = metadata.keys() if records.columns & block.KEY else None
    changed = _with_columns(records, metadata, keys, [new_cells[cell] for cell in cells])
    fits = len(changed.payload) + len(changed.metadata) <= limits.batch_bytes_max
    return changed if fits else records


def _metadata(batch: Batch) -> block.Block:
    data = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
    )
    return block.Block(data, kind=block.METADATA)


def _with_columns(
    batch: Batch,
    old_metadata: block.Block,
    keys: Sequence[bytes | None] | None,
    cells: Sequence[bytes],
) -> Batch:
    columns, metadata = block.encode_metadata(
        timestamps=old_metadata.timestamps() if batch.columns & block.TIMESTAMP else None,
        keys=keys,
        headers=cells,
        valid=old_metadata.valid(),
    )
    crc = block.checksum(metadata)
    return replace(batch, columns=columns, metadata=metadata, metadata_crc=crc)


def _added(headers: bytes, name: str, value: str, limits: Limits) -> bytes:
    present = check_cell(headers) if headers else {}
    if name in dict(present):
        return headers
    data = _encode(
        {**present, name: value} if isinstance(present, dict) else (*present, (name, value))
    )
    return data if len(data) <= limits.headers_bytes_max else headers
