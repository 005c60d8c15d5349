"""Blocks: many records in one value, as columns.

One codec serves payloads and metadata. The header is placed when ids are known; the body is
encoded, checked and sent without them, so a block that arrives over a wire is stored as it came.

    header, 56 bytes, little-endian
    0   u16  0xffff: no RFC array has so many elements, so the two never look alike
    2   u8   version, 1
    3   u8   kind: 1 payload, 2 metadata
    4   u32  count
    8   u64  message id of the first record
    16  i64  when it was appended, ms
    24  i64  timestamp of every record, where the columns of times are absent, ms
    32  u16  columns: 1 value, 2 timestamp, 4 key, 8 key validity, 16 headers, 32 appended, 64 ids,
             128 value validity
    34  u16  0
    36  u32  bytes in the body
    40  u32  in metadata: bytes in the body of the payload block that belongs to it
    44  u32  in metadata: bytes that its records count for; 0: those of both bodies
    48  u32  CRC32C of the body
    52  u32  CRC32C of the 52 bytes before

    body: the columns that are present, in that order, each padded to 8 bytes
    timestamp     i64[count]; where only appended is there, the timestamps are the same
    appended      i64[count], where it differs by record
    ids           i64[count], the last column, where they do not follow each other by one
    key validity  bits, least significant first, before the key column
    value validity  the same, in metadata, behind the headers: 0 means that the value is null
    the others    cells: u32[count + 1] offsets, padding, bytes

These are Arrow's layouts: a column's buffers can be handed over without a copy. Record *i* is
found in O(1). Headers are a MessagePack map each, empty where there are none.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

import google_crc32c
from msgspec import Struct

from millstream.errors import CorruptionError
from millstream.format.cells import Cells, encode_cells, round8

MARK = 0xFFFF
VERSION = 1
PAYLOAD = 1
METADATA = 2

VALUE = 1
TIMESTAMP = 2
KEY = 4
KEY_VALIDITY = 8
HEADERS = 16
APPENDED = 32
IDS = 64
VALUE_VALIDITY = 128

_ORDER = (VALUE, TIMESTAMP, KEY_VALIDITY, KEY, HEADERS, VALUE_VALIDITY, APPENDED, IDS)
_KNOWN = sum(_ORDER)

HEADER_BYTES = 56

_HEADER = struct.Struct("<HBBIQqqHHIIII")
_CRC = struct.Struct("<I")
_SWAP = sys.byteorder == "big"


class BlockHeader(Struct, frozen=True, gc=False):
    """What a block's header says."""

    kind: int
    count: int
    first_id: int
    appended_ms: int
    timestamp_ms: int
    columns: int
    reserved: int
    body_bytes: int
    payload_bytes: int
    counted_bytes: int
    body_crc: int

    @property
    def log_bytes(self) -> int:
        """In metadata: how many bytes of its log its records count for."""
        return self.counted_bytes or self.body_bytes + self.payload_bytes


def checksum(data: bytes) -> int:
    """CRC32C of some bytes."""
    return int(google_crc32c.value(data))


def encode_values(values: Sequence[bytes]) -> bytes:
    """The body of a payload block."""
    return b"".join(encode_cells(values))


def encode_metadata(
    *,
    timestamps: Sequence[int] | None,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
    valid: Sequence[bool] | None = None,
    appended: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
) -> tuple[int, bytes]:
    """The columns bitmap and body of a metadata block; what is None takes no space.

    Without timestamps they are the times in `appended`, if that is given. `valid` says which values
    are not null; None if all are not.
    """
    columns = 0
    parts: list[bytes] = []
    if timestamps is not None:
        columns |= TIMESTAMP
        parts.append(_fixed(array("q", timestamps)))
    if keys is not None:
        columns |= KEY
        if None in keys:
            columns |= KEY_VALIDITY
            parts += _padded(_bits([key is not None for key in keys]))
            keys = [key or b"" for key in keys]
        parts += encode_cells(keys)  # type: ignore[arg-type]
    if headers is not None:
        columns |= HEADERS
        parts += encode_cells(headers)
    if valid is not None and not all(valid):
        columns |= VALUE_VALIDITY
        parts += _padded(_bits(valid))
    if appended is not None:
        columns |= APPENDED
        parts.append(_fixed(array("q", appended)))
    if ids is not None:
        columns |= IDS
        parts.append(_fixed(array("q", ids)))
    return columns, b"".join(parts)


def place(
    body: bytes,
    *,
    kind: int,
    count: int,
    columns: int,
    first_id: int = 0,
    body_crc: int | None = None,
    appended_ms: int = 0,
    timestamp_ms: int = 0,
    payload_bytes: int = 0,
    counted_bytes: int = 0,
) -> bytes:
    """The whole block: a body behind its header. A checksum that is known is not computed again."""
    head = _HEADER.pack(
        MARK,
        VERSION,
        kind,
        count,
        first_id,
        appended_ms,
        timestamp_ms,
        columns,
        0,
        len(body),
        payload_bytes,
        counted_bytes,
        checksum(body) if body_crc is None else body_crc,
    )
    return b"".join((head, _CRC.pack(checksum(head)), body))


def place_values(
    body: bytes, *, count: int, first_id: int = 0, body_crc: int | None = None
) -> bytes:
    """The whole payload block."""
    return place(
        body, kind=PAYLOAD, count=count, columns=VALUE, first_id=first_id, body_crc=body_crc
    )


def is_block(value: bytes) -> bool:
    """Whether a log entry's value is a block rather than an RFC array."""
    return value[:2] == b"\xff\xff"


def decode_header(data: bytes, *, kind: int) -> BlockHeader:
    """Check and read a header; a damaged, cut or unknown one is refused."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"a block of {len(data)} bytes is cut", what="block", where=len(data))
    mark, version, found, *rest = _HEADER.unpack_from(data)
    if mark != MARK or version != VERSION:
        raise CorruptionError(f"unknown block version {version}", what="block", where=0)
    (head_crc,) = _CRC.unpack_from(data, HEADER_BYTES - 4)
    if checksum(data[: HEADER_BYTES - 4]) != head_crc:
        raise CorruptionError("a block's header is damaged", what="block header", where=52)
    if found != kind:
        raise CorruptionError(f"a block of kind {found}, not {kind}", what="block kind", where=3)
    body_bytes = rest[6]
    if len(data) != HEADER_BYTES + body_bytes:
        raise CorruptionError(
            f"a block has {len(data) - HEADER_BYTES} bytes of body, its header says {body_bytes}",
            what="block body",
            where=36,
        )
    return BlockHeader(kind, *rest)


def nulled(values: list[bytes], valid: Sequence[bool] | None) -> list[bytes | None]:
    """Values with None in place of those that are null; `valid` as a metadata block has it."""
    if valid is None:
        return values  # type: ignore[return-value]
    return [value if yes else None for value, yes in zip(values, valid, strict=True)]


class Block:
    """The columns of one checked block.

    `trusted` says that the checksum of the whole row was compared just now: its own need not be.
    """

    __slots__ = ("_cells", "_data", "_starts", "header")

    def __init__(self, data: bytes, *, kind: int, trusted: bool = False) -> None:
        self.header = decode_header(data, kind=kind)
        if not trusted and checksum(data[HEADER_BYTES:]) != self.header.body_crc:
            raise CorruptionError("a block's body is damaged", what="block body", where=48)
        self._data = data
        self._cells: dict[int, Cells] = {}
        self._starts = self._locate()

    @property
    def count(self) -> int:
        """How many records it holds."""
        return self.header.count

    def body(self) -> bytes:
        """All columns, without the header."""
        return self._data[HEADER_BYTES:]

    def column(self, column: int, first: int = 0, count: int | None = None) -> list[bytes] | None:
        """A column of cells, or some rows of it, as a list; None if absent."""
        found = self._cells.get(column)
        if found is None:
            return None
        return found.cut(first, self.header.count - first if count is None else count)

    def cells(self, column: int) -> Cells | None:
        """A column of cells as it is; None if absent."""
        return self._cells.get(column)

    def cell(self, column: int, index: int) -> bytes | None:
        """One record's value in a column of cells, in O(1); None if the column is absent."""
        found = self._cells.get(column)
        return None if found is None else found.cell(index)

    def buffers(self, column: int) -> tuple[memoryview, memoryview] | None:
        """The offsets and the bytes of a column of cells; None if absent."""
        found = self._cells.get(column)
        return None if found is None else found.buffers()

    def timestamps(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """Every record's timestamp, or those of some, in ms."""
        column = TIMESTAMP if self.header.columns & TIMESTAMP else APPENDED
        return self._numbers(column, self.header.timestamp_ms, first, count)

    def appended(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """When each record was appended, or some were, in ms."""
        return self._numbers(APPENDED, self.header.appended_ms, first, count)

    def timestamp_ms(self) -> int | None:
        """The timestamp that all records have; None if each has its own."""
        header = self.header
        return None if header.columns & (TIMESTAMP | APPENDED) else header.timestamp_ms

    def appended_ms(self) -> int | None:
        """When all records were appended; None if each was at a time of its own."""
        header = self.header
        return None if header.columns & APPENDED else header.appended_ms

    def ids(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """Every record's message id, or those of some."""
        header = self.header
        if header.columns & IDS:
            return self._numbers(IDS, 0, first, count)
        start, some = header.first_id + first, header.count - first if count is None else count
        return range(start, start + some)

    def validity(self) -> Sequence[bool] | None:
        """Which records have a key; None if all or none have."""
        return self._flags(KEY_VALIDITY, 0, self.header.count)

    def validity_bits(self, column: int = KEY_VALIDITY) -> memoryview | None:
        """Which records have a key, or a value, as bits: Arrow's form, without a copy.

        None if all have, or none has a key.
        """
        start = self._starts.get(column)
        if start is None:
            return None
        return memoryview(self._data)[start : start + (self.header.count + 7) // 8]

    def valid(self, first: int = 0, count: int | None = None) -> Sequence[bool] | None:
        """In metadata: which records have a value that is not null, or which of some; None if all."""
        return self._flags(
            VALUE_VALIDITY, first, self.header.count - first if count is None else count
        )

    def _flags(self, column: int, first: int, count: int) -> Sequence[bool] | None:
        start = self._starts.get(column)
        if start is None:
            return None
        data = self._data
        return [bool(data[start + i // 8] >> (i % 8) & 1) for i in range(first, first + count)]

    def keys(self, first: int = 0, count: int | None = None) -> list[bytes | None]:
        """Every record's key, or those of some."""
        some = self.header.count - first if count is None else count
        found = self.column(KEY, first, some)
        if found is None:
            return [None] * some
        start = self._starts.get(KEY_VALIDITY)
        if start is None:
            return list(found)
        data = self._data
        return [
            key if data[start + (i >> 3)] >> (i & 7) & 1 else None
            for i, key in enumerate(found, first)
        ]

    def _numbers(self, column: int, constant: int, first: int, count: int | None) -> Sequence[int]:
        some = self.header.count - first if count is None else count
        start = self._starts.get(column)
        if start is None:
            return [constant] * some
        start += 8 * first
        numbers = array("q", self._data[start : start + 8 * some])
        if _SWAP:
            numbers.byteswap()
        return numbers

    def _locate(self) -> dict[int, int]:
        """Where each column starts; every length is checked against the body's."""
        count, columns = self.header.count, self.header.columns
        starts: dict[int, int] = {}
        position = HEADER_BYTES
        for column in _ORDER:
            if not columns & column:
                continue
            starts[column] = position
            if column in (TIMESTAMP, APPENDED, IDS):
                position += 8 * count
            elif column in (KEY_VALIDITY, VALUE_VALIDITY):
                position += round8((count + 7) // 8)
            else:
                cells = self._cells[column] = Cells(self._data, position, count)
                position = cells.stop
        if position != len(self._data) or columns & ~_KNOWN:
            raise CorruptionError(
                "a block's columns do not fill its body", what="block body", where=position
            )
        return starts


def _fixed(numbers: array[int]) -> bytes:
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def _bits(flags: Sequence[bool]) -> bytes:
    digits = "".join("1" if flag else "0" for flag in reversed(flags))
    return int(digits, 2).to_bytes((len(flags) + 7) // 8, "little")


def _padded(data: bytes) -> list[bytes]:
    return [data, bytes(-len(data) % 8)] if len(data) % 8 else [data]
