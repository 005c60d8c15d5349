"""A block of records as it is read: neighbouring records of one log, as columns.

It holds bytes and decodes what is asked for. `records` makes objects; the columns are for callers
that can do without.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Before a count of 32 bits: what makes maps that lie back to back a MessagePack array."""


class RecordBlock(Struct, frozen=True, array_like=True, gc=False):
    """Records at the offsets [first_offset, first_offset + len)."""

    log: str
    first_offset: int
    skip: int
    """Records at the front of the stored block that were not asked for."""
    count: int
    metadata: bytes
    payload: bytes

    def __len__(self) -> int:
        return self.count

    @property
    def offsets(self) -> range:
        """The offsets of its records."""
        return range(self.first_offset, self.first_offset + self.count)

    def values(self) -> list[bytes | None]:
        """Every record's value; None for null."""
        found = self._cells()
        columns = blocks.decode_header(self.metadata, kind=blocks.METADATA).columns
        if not columns & blocks.VALUE_VALIDITY:
            return found  # type: ignore[return-value]
        return blocks.nulled(found, self._metadata().valid(self.skip, self.count))

    def valid(self) -> Sequence[bool] | None:
        """Which records have a value that is not null; None if all have."""
        return self._metadata().valid(self.skip, self.count)

    def keys(self) -> list[bytes | None]:
        """Every record's key."""
        return self._metadata().keys(self.skip, self.count)

    def timestamps(self) -> list[int]:
        """Every record's timestamp, in ms."""
        return list(self._metadata().timestamps(self.skip, self.count))

    def appended(self) -> list[int]:
        """When each record was appended, in ms."""
        return list(self._metadata().appended(self.skip, self.count))

    def headers(self) -> list[Headers]:
        """Every record's headers."""
        return headers_of(self._metadata(), self.skip, self.count)

    def visible_headers(self) -> list[dict[str, Scalar]]:
        """Every record's headers as filters see them."""
        return visible_headers_of(self._metadata(), self.skip, self.count)

    def records(self) -> list[Record]:
        """The records, as objects."""
        return self._records(self._cells())

    def bare_records(self) -> list[Record]:
        """The records of a block that was read without values, with empty ones."""
        return self._records([b""] * self.count)

    def _cells(self) -> list[bytes]:
        payload = blocks.Block(self.payload, kind=blocks.PAYLOAD)
        found = payload.column(blocks.VALUE, self.skip, self.count)
        assert found is not None
        return found

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
    """The headers of some records of a block, each packed until it is looked at."""
    cells = metadata.column(blocks.HEADERS, first, count)
    return [NO_HEADERS] * count if cells is None else list(map(Headers, cells))


def plain_headers_of(metadata: blocks.Block, first: int, count: int) -> list[Plain]:
    """The headers of some records of a block, all unpacked at once."""
    packed = packed_headers_of(metadata, first, count)
    return _decode_many(packed) if packed else [{} for _ in range(count)]


def visible_headers_of(metadata: blocks.Block, first: int, count: int) -> list[dict[str, Scalar]]:
    """The headers of some records of a block as filters see them."""
    packed = packed_headers_of(metadata, first, count)
    return _visible(packed) if packed else [{} for _ in range(count)]


def packed_headers_of(metadata: blocks.Block, first: int, count: int) -> bytes:
    """The headers of some records as a MessagePack array of maps; nothing if none has any."""
    cells = metadata.cells(blocks.HEADERS)
    if cells is None:
        return b""
    if cells.any_is_empty(first, count):
        maps = b"".join([cell or _NO_MAP for cell in cells.cut(first, count)])
    else:
        maps = cells.joined(first, count)
    return _ARRAY + count.to_bytes(4, "big") + maps


def picked_headers_of(metadata: blocks.Block, indexes: Sequence[int]) -> bytes:
    """The headers of records that need not be neighbours, as a MessagePack array of maps."""
    cells = metadata.cells(blocks.HEADERS)
    if cells is None:
        return b""
    maps = cells.pick(indexes)
    if not cells.is_full():
        maps = [one or _NO_MAP for one in maps]
    return _ARRAY + len(maps).to_bytes(4, "big") + b"".join(maps)


def unpack_visible(cells: Sequence[bytes]) -> list[dict[str, Scalar]]:
    """The headers of records as filters see them, all at once; an empty cell is none."""
    maps = b"".join([cell or _NO_MAP for cell in cells])
    return _visible(_ARRAY + len(cells).to_bytes(4, "big") + maps)


def _visible(packed: bytes) -> list[dict[str, Scalar]]:
    """Mostly there are neither repeated names nor bytes: then nothing is done for each record."""
    try:
        return _decode_visible(packed)
    except msgspec.ValidationError:
        return [visible(dict(one)) for one in _decode_many(packed)]


def pack_headers(headers: Sequence[Headers]) -> bytes:
    """Headers of records as a MessagePack array; nothing if none has any."""
    return _encode([one.plain() for one in headers]) if any(headers) else b""


def unpack_headers(packed: bytes) -> list[Headers]:
    """Headers from their array."""
    found: list[Plain] = _decode_many(packed)
    return list(map(Headers, found))


def pack(log: str, first_offset: int, entry: Entry, values: Sequence[bytes] | None) -> RecordBlock:
    """Records that were stored apart, as one block: as many as there are values.

    With None it holds all of them without values.
    """
    count = len(entry) if values is None else len(values)
    body = b"" if values is None else blocks.encode_values(values)
    metadata = encode(entry.first(count), payload_bytes=len(body))
    payload = b"" if values is None else blocks.place_values(body, count=count)
    return RecordBlock(log, first_offset, 0, count, metadata, payload)
