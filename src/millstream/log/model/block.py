"""Blocks of records for readers: contiguous records of a log, as columns.

A block holds bytes, and decodes columns on demand. `records` makes objects; callers that need no objects
use the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from millstream.format import block as blocks
from millstream.format.entries import Entry, encode
from millstream.header import NO_HEADERS, Headers, Plain, Scalar, visible
from millstream.record import Record

_encode = msgspec.msgpack.Encoder().encode
_decode_visible = msgspec.msgpack.Decoder(list[dict[str, Scalar]]).decode
_decode_many = msgspec.msgpack.Decoder(list[dict[str, Any] | tuple[tuple[str, Any], ...]]).decode
_NO_MAP = b"\x80"
_ARRAY = b"\xdd"
"""The first byte of a MessagePack array with a count of 32 bits."""


class RecordBlock(Struct, frozen=True, array_like=True, gc=False):
    """Records at the offsets [first_offset, first_offset + len)."""

    log: str
    first_offset: int
    skip: int
    """The number of records at the front of the stored block that do not belong to this block."""
    count: int
    metadata: bytes
    payload: bytes

    def __len__(self) -> int:
        return self.count

    @property
    def offsets(self) -> range:
        """The offsets of the records."""
        return range(self.first_offset, self.first_offset + self.count)

    def values(self) -> list[bytes | None]:
        """Return the values of the records; None for null."""
        cells = self._cells()
        columns = blocks.decode_header(self.metadata, kind=blocks.METADATA).columns
        if not columns & blocks.VALUE_VALIDITY:
            return cells  # type: ignore[return-value]
        return blocks.nulled(cells, self._metadata().valid(self.skip, self.count))

    def valid(self) -> Sequence[bool] | None:
        """Return for each record whether its value is not null; None if no value is null."""
        return self._metadata().valid(self.skip, self.count)

    def keys(self) -> list[bytes | None]:
        """Return the keys of the records."""
        return self._metadata().keys(self.skip, self.count)

    def timestamps(self) -> list[int]:
        """Return the timestamps of the records, in ms."""
        return list(self._metadata().timestamps(self.skip, self.count))

    def appended(self) -> list[int]:
        """Return the append times of the records, in ms."""
        return list(self._metadata().appended(self.skip, self.count))

    def headers(self) -> list[Headers]:
        """Return the headers of the records."""
        return headers_of(self._metadata(), self.skip, self.count)

    def header_cells(self) -> list[bytes]:
        """Return the packed headers of the records; empty bytes for a record without headers."""
        cells = self._metadata().column(blocks.HEADERS, self.skip, self.count)
        return [b""] * self.count if cells is None else cells

    def visible_headers(self) -> list[dict[str, Scalar]]:
        """Return the headers of the records as filters see them."""
        return visible_headers_of(self._metadata(), self.skip, self.count)

    def records(self) -> list[Record]:
        """Return the records as objects."""
        return self._records(self._cells())

    def bare_records(self) -> list[Record]:
        """Return the records of a block without payload, with empty values."""
        return self._records([b""] * self.count)

    def _cells(self) -> list[bytes]:
        payload = blocks.Block(self.payload, kind=blocks.PAYLOAD)
        cells = payload.column(blocks.VALUE, self.skip, self.count)
        assert cells is not None
        return cells

    def _records(self, cells: list[bytes]) -> list[Record]:
        metadata, log = self._metadata(), self.log
        values = blocks.nulled(cells, metadata.valid(self.skip, self.count))
        return [
            Record(log, offset, value, timestamp, key, header, appended)
            for offset, value, timestamp, key, header, appended in zip(
                self.offsets,
                values,
                metadata.timestamps(self.skip, self.count),
                metadata.keys(self.skip, self.count),
                headers_of(metadata, self.skip, self.count),
                metadata.appended(self.skip, self.count),
                strict=True,
            )
        ]

    def _metadata(self) -> blocks.Block:
        return blocks.Block(self.metadata, kind=blocks.METADATA)


def headers_of(metadata: blocks.Block, first: int, count: int) -> list[Headers]:
    """Return the headers of records of a block, decoded at their first use."""
    cells = metadata.column(blocks.HEADERS, first, count)
    return [NO_HEADERS] * count if cells is None else list(map(Headers, cells))


def plain_headers_of(metadata: blocks.Block, first: int, count: int) -> list[Plain]:
    """Return the decoded headers of records of a block."""
    packed = packed_headers_of(metadata, first, count)
    return _decode_many(packed) if packed else [{} for _ in range(count)]


def visible_headers_of(metadata: blocks.Block, first: int, count: int) -> list[dict[str, Scalar]]:
    """Return the headers of records of a block as filters see them."""
    packed = packed_headers_of(metadata, first, count)
    return _visible(packed) if packed else [{} for _ in range(count)]


def packed_headers_of(metadata: blocks.Block, first: int, count: int) -> bytes:
    """Return the headers of records as a MessagePack array of maps; empty without headers."""
    cells = metadata.cells(blocks.HEADERS)
    if cells is None:
        return b""
    if cells.any_is_empty(first, count):
        maps = b"".join([cell or _NO_MAP for cell in cells.cut(first, count)])
    else:
        maps = cells.joined(first, count)
    return _ARRAY + count.to_bytes(4, "big") + maps


def picked_headers_of(metadata: blocks.Block, indexes: Sequence[int]) -> bytes:
    """Return the headers of records at any indexes as a MessagePack array of maps."""
    cells = metadata.cells(blocks.HEADERS)
    if cells is None:
        return b""
    maps = cells.pick(indexes)
    if not cells.is_full():
        maps = [cell or _NO_MAP for cell in maps]
    return _ARRAY + len(maps).to_bytes(4, "big") + b"".join(maps)


def unpack_visible(cells: Sequence[bytes]) -> list[dict[str, Scalar]]:
    """Decode the headers of records as filters see them; an empty cell has no headers.

    Records with equal cells may share a dictionary: callers must not change it.
    """
    distinct = dict.fromkeys(cells)
    if 2 * len(distinct) > len(cells):
        return _visible_of(cells)
    by_cell = dict(zip(distinct, _visible_of(distinct), strict=True))
    return [by_cell[cell] for cell in cells]


def _visible_of(cells: Collection[bytes]) -> list[dict[str, Scalar]]:
    maps = b"".join([cell or _NO_MAP for cell in cells])
    return _visible(_ARRAY + len(cells).to_bytes(4, "big") + maps)


def _visible(packed: bytes) -> list[dict[str, Scalar]]:
    """Decode headers; records without repeated names and bytes, the usual case, need no further work."""
    try:
        return _decode_visible(packed)
    except msgspec.ValidationError:
        return [visible(dict(headers)) for headers in _decode_many(packed)]


def pack_headers(headers: Sequence[Headers]) -> bytes:
    """Encode the headers of records as a MessagePack array; empty without headers."""
    return _encode([record_headers.plain() for record_headers in headers]) if any(headers) else b""


def unpack_headers(packed: bytes) -> list[Headers]:
    """Decode an array of headers."""
    maps: list[Plain] = _decode_many(packed)
    return list(map(Headers, maps))


def pack(log: str, first_offset: int, entry: Entry, values: Sequence[bytes] | None) -> RecordBlock:
    """Join records that were stored apart into a block with the given values.

    With None the block holds all records without values.
    """
    count = len(entry) if values is None else len(values)
    body = b"" if values is None else blocks.encode_values(values)
    metadata = encode(entry.first(count), payload_bytes=len(body))
    payload = b"" if values is None else blocks.place_values(body, count=count)
    return RecordBlock(log, first_offset, 0, count, metadata, payload)
