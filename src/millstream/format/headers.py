"""A header added to records that are packed already.

A record that has the header keeps its own. What would grow beyond the limits stays as it is: the
header is a note of ours, and no reason to refuse a record.
"""

from __future__ import annotations

import msgspec

from millstream.format import block
from millstream.format.packing import Batch, HeaderMap, Single
from millstream.limits import Limits

_decode = msgspec.msgpack.Decoder(HeaderMap).decode
_encode = msgspec.msgpack.Encoder().encode


def add_header(records: Single | Batch, name: str, value: str, limits: Limits) -> Single | Batch:
    """The records, each with the header unless it has one of that name."""
    if isinstance(records, Single):
        headers = _added(records.headers, name, value, limits)
        return Single(records.value, records.key, headers, records.timestamp_ms)
    return _added_to_batch(records, name, value, limits)


def _added_to_batch(batch: Batch, name: str, value: str, limits: Limits) -> Batch:
    whole = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
    )
    found = block.Block(whole, kind=block.METADATA)
    cells = found.column(block.HEADERS) or [b""] * batch.count
    known = {cell: _added(cell, name, value, limits) for cell in set(cells)}
    columns, metadata = block.encode_metadata(
        timestamps=found.timestamps() if batch.columns & block.TIMESTAMP else None,
        keys=found.keys() if batch.columns & block.KEY else None,
        headers=[known[cell] for cell in cells],
    )
    if len(batch.payload) + len(metadata) > limits.batch_bytes_max:
        return batch
    return Batch(
        batch.count,
        batch.payload,
        batch.payload_crc,
        columns,
        metadata,
        block.checksum(metadata),
        batch.timestamp_ms,
    )


def _added(headers: bytes, name: str, value: str, limits: Limits) -> bytes:
    found = _decode(headers) if headers else {}
    if name in found:
        return headers
    data = _encode({**found, name: value})
    return data if len(data) <= limits.headers_bytes_max else headers
