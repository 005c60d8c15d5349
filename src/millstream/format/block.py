"""Blocks: many records in one value, as columns.

One codec serves payloads and metadata. The header is added when ids are known. The body is encoded,
checked and sent without ids, so a body from a client is stored unchanged.

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
    44  u32  in metadata: bytes that the records add to their log; 0: the bytes of both bodies
    48  u32  CRC32C of the body
    52  u32  CRC32C of the 52 bytes before

    body: the columns that are present, in that order, each padded to 8 bytes
    timestamp     i64[count]; where only appended is there, the timestamps are the same
    appended      i64[count], where it differs by record
    ids           i64[count], the last column, where they do not follow each other by one
    key validity  bits, least significant first, before the key column
    value validity  the same, in metadata, behind the headers: 0 means that the value is null
    the others    cells: u32[count + 1] offsets, padding, bytes

The layouts are Arrow's: the buffers of a column can be passed on without a copy. Record *i* is found
in O(1). The headers of a record are a MessagePack map; a record without headers has an empty cell.
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
    """The header of a block."""

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
        """In metadata: the bytes that the records add to their log."""
        return self.counted_bytes or self.body_bytes + self.payload_bytes


def checksum(data: bytes) -> int:
    """Return the CRC32C of bytes."""
    return int(google_crc32c.value(data))


def encode_values(values: Sequence[bytes]) -> bytes:
    """Encode the body of a payload block."""
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
    """Return the columns bitmap and the body of a metadata block; None for an absent column.

    Absent timestamps equal the times in `appended`, if present. `valid` marks values that are not
    null; None if no value is null.
    """
    columns = 0
    pieces: list[bytes] = []
    if timestamps is not None:
        columns |= TIMESTAMP
        pieces.append(_fixed(array("q", timestamps)))
    if keys is not None:
        columns |= KEY
        if None in keys:
            columns |= KEY_VALIDITY
            pieces += _padded(_bits([key is not None for key in keys]))
            keys = [key or b"" for key in keys]
        pieces += encode_cells(keys)  # type: ignore[arg-type]
    if headers is not None:
        columns |= HEADERS
        pieces += encode_cells(headers)
    if valid is not None and not all(valid):
        columns |= VALUE_VALIDITY
        pieces += _padded(_bits(valid))
    if appended is not None:
        columns |= APPENDED
        pieces.append(_fixed(array("q", appended)))
    if ids is not None:
        columns |= IDS
        pieces.append(_fixed(array("q", ids)))
    return columns, b"".join(pieces)


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
    """Return a block: a body behind its header. A given checksum is not computed again."""
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
    """Return a payload block: a body behind its header."""
    return place(
        body, kind=PAYLOAD, count=count, columns=VALUE, first_id=first_id, body_crc=body_crc
    )


def is_block(value: bytes) -> bool:
    """True if the value of a log entry is a block, False for an RFC array."""
    return value[:2] == b"\xff\xff"


def decode_header(data: bytes, *, kind: int) -> BlockHeader:
    """Check and read a header; raise `CorruptionError` for a damaged, cut or unknown header."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"a block of {len(data)} bytes is cut", what="block", where=len(data))
    mark, version, stored_kind, *fields = _HEADER.unpack_from(data)
    if mark != MARK or version != VERSION:
        raise CorruptionError(f"unknown block version {version}", what="block", where=0)
    (head_crc,) = _CRC.unpack_from(data, HEADER_BYTES - 4)
    if checksum(data[: HEADER_BYTES - 4]) != head_crc:
        raise CorruptionError("a block's header is damaged", what="block header", where=52)
    if stored_kind != kind:
        raise CorruptionError(
            f"a block of kind {stored_kind}, not {kind}", what="block kind", where=3
        )
    body_bytes = fields[6]
    if len(data) != HEADER_BYTES + body_bytes:
        raise CorruptionError(
            f"a block has {len(data) - HEADER_BYTES} bytes of body, its header says {body_bytes}",
            what="block body",
            where=36,
        )
    return BlockHeader(kind, *fields)


def nulled(values: list[bytes], valid: Sequence[bool] | None) -> list[bytes | None]:
    """Replace null values by None; `valid` comes from the metadata block."""
    if valid is None:
        return values  # type: ignore[return-value]
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


class Block:
    """The columns of one checked block.

    `trusted` skips the checksum of the body: the caller has just compared that of the row.
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
        """The number of records."""
        return self.header.count

    def body(self) -> bytes:
        """Return all columns, without the header."""
        return self._data[HEADER_BYTES:]

    def column(self, column: int, first: int = 0, count: int | None = None) -> list[bytes] | None:
        """Return the cells of a column, or a range of them, as a list; None for an absent column."""
        cells = self._cells.get(column)
        if cells is None:
            return None
        return cells.cut(first, self.header.count - first if count is None else count)

    def cells(self, column: int) -> Cells | None:
        """Return a column of cells; None for an absent column."""
        return self._cells.get(column)

    def cell(self, column: int, index: int) -> bytes | None:
        """Return the cell of a record, in O(1); None for an absent column."""
        cells = self._cells.get(column)
        return None if cells is None else cells.cell(index)

    def buffers(self, column: int) -> tuple[memoryview, memoryview] | None:
        """Return the offsets and the bytes of a column of cells; None for an absent column."""
        cells = self._cells.get(column)
        return None if cells is None else cells.buffers()

    def timestamps(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """Return the timestamps of the records, or of a range, in ms."""
        column = TIMESTAMP if self.header.columns & TIMESTAMP else APPENDED
        return self._numbers(column, self.header.timestamp_ms, first, count)

    def appended(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """Return the append times of the records, or of a range, in ms."""
        return self._numbers(APPENDED, self.header.appended_ms, first, count)

    def timestamp_ms(self) -> int | None:
        """Return the common timestamp of all records; None for individual timestamps."""
        header = self.header
        return None if header.columns & (TIMESTAMP | APPENDED) else header.timestamp_ms

    def appended_ms(self) -> int | None:
        """Return the common append time of all records; None for individual times."""
        header = self.header
        return None if header.columns & APPENDED else header.appended_ms

    def ids(self, first: int = 0, count: int | None = None) -> Sequence[int]:
        """Return the message ids of the records, or of a range."""
        header = self.header
        if header.columns & IDS:
            return self._numbers(IDS, 0, first, count)
        start, total = header.first_id + first, header.count - first if count is None else count
        return range(start, start + total)

    def validity(self) -> Sequence[bool] | None:
        """Return flags of records with a key; None if the flags are all equal."""
        return self._flags(KEY_VALIDITY, 0, self.header.count)

    def validity_bits(self, column: int = KEY_VALIDITY) -> memoryview | None:
        """Return flags of records with a key, or a value, as Arrow's bits, without a copy.

        None if the flags are all equal.
        """
        start = self._starts.get(column)
        if start is None:
            return None
        return memoryview(self._data)[start : start + (self.header.count + 7) // 8]

    def valid(self, first: int = 0, count: int | None = None) -> Sequence[bool] | None:
        """In metadata, return flags of records whose value is not null; None if no value is null."""
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
        """Return the keys of the records, or of a range."""
        total = self.header.count - first if count is None else count
        cells = self.column(KEY, first, total)
        if cells is None:
            return [None] * total
        start = self._starts.get(KEY_VALIDITY)
        if start is None:
            return list(cells)
        data = self._data
        return [
            key if data[start + (i >> 3)] >> (i & 7) & 1 else None
            for i, key in enumerate(cells, first)
        ]

    def _numbers(self, column: int, constant: int, first: int, count: int | None) -> Sequence[int]:
        total = self.header.count - first if count is None else count
        start = self._starts.get(column)
        if start is None:
            return [constant] * total
        start += 8 * first
        numbers = array("q", self._data[start : start + 8 * total])
        if _SWAP:
            numbers.byteswap()
        return numbers

    def _locate(self) -> dict[int, int]:
        """Return the start of each column; raise `CorruptionError` unless they fill the body."""
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
