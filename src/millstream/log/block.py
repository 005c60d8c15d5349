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
from millstream.record import NO_HEADERS, Headers, Record

_encode = msgspec.msgpack.Encoder().encode
_decode_many = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode
_NO_MAP = b"\x80"
_ARRAY = b"\xdd"
"""Before a count of 32 bits: what makes maps that lie back to back a MessagePack array."""


class Block(Struct, frozen=True, array_like=True, gc=False):
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

    def values(self) -> list[bytes]:
        """Every record's value."""
        payload = blocks.Block(self.payload, kind=blocks.PAYLOAD)
        found = payload.column(blocks.VALUE, self.skip, self.count)
        assert found is not None
        return found

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
        return self._headers(self._metadata())

    def records(self) -> list[Record]:
        """The records, as objects."""
        metadata, log = self._metadata(), self.log
        return [
            Record(log, offset, value, timestamp, key, header, appended)
            for offset, value, timestamp, key, header, appended in zip(
                self.offsets,
                self.values(),
                metadata.timestamps(self.skip, self.count),
                metadata.keys(self.skip, self.count),
                self._headers(metadata),
                metadata.appended(self.skip, self.count),
                strict=True,
            )
        ]

    def _metadata(self) -> blocks.Block:
        return blocks.Block(self.metadata, kind=blocks.METADATA)

    def _headers(self, metadata: blocks.Block) -> list[Headers]:
        return headers_of(metadata, self.skip, self.count)


def headers_of(metadata: blocks.Block, first: int, count: int) -> list[Headers]:
    """The headers of some records of a block; the dicts are the caller's own."""
    packed = packed_headers_of(metadata, first, count)
    return unpack_headers(packed) if packed else [NO_HEADERS] * count


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


def pack_headers(headers: Sequence[Headers]) -> bytes:
    """Headers of records as a MessagePack array of maps; nothing if none has any."""
    return _encode([dict(one) for one in headers]) if any(headers) else b""


def unpack_headers(packed: bytes) -> list[Headers]:
    """Headers from their array of maps."""
    return _decode_many(packed)  # type: ignore[return-value]


def pack(log: str, first_offset: int, columns: Columns) -> Block:
    """Records that were stored apart, as one block."""
    payload = blocks.encode_values(columns.values)
    bitmap, metadata = blocks.encode_metadata(
        timestamps=columns.timestamps,
        keys=columns.keys if any(key is not None for key in columns.keys) else None,
        headers=columns.headers if any(columns.headers) else None,
        appended=columns.appended,
    )
    count = len(columns.values)
    return Block(
        log,
        first_offset,
        0,
        count,
        blocks.place(
            metadata,
            kind=blocks.METADATA,
            count=count,
            first_id=0,
            columns=bitmap,
            body_crc=blocks.checksum(metadata),
            payload_bytes=len(payload),
        ),
        blocks.place(
            payload,
            kind=blocks.PAYLOAD,
            count=count,
            first_id=0,
            columns=blocks.VALUE,
            body_crc=blocks.checksum(payload),
        ),
    )


def pack_metadata(
    log: str,
    first_offset: int,
    keys: Sequence[bytes | None],
    headers: Sequence[bytes],
    timestamps: Sequence[int],
    appended: Sequence[int],
) -> Block:
    """The metadata of records that were stored apart, without their values."""
    values = [b""] * len(keys)
    found = pack(log, first_offset, Columns(values, keys, headers, timestamps, appended))
    return Block(log, first_offset, 0, len(keys), found.metadata, b"")


class Columns(Struct):
    """The columns of records that were stored apart."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    headers: Sequence[bytes]
    timestamps: Sequence[int]
    appended: Sequence[int]
