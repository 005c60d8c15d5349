"""The common encodings: integers, strings, byte strings and arrays, as pure functions.

What always holds: bytes that a reader accepts are exactly the bytes that the encoder would write
for the same value. No reader loops or allocates by a length that the input only claims to have.

    u8 u16 u32 u64 i64   little-endian in values
    key_u8 … key_u64     big-endian in keys, so that they sort as numbers
    key_i64              big-endian with the sign bit flipped, so that negative numbers sort first
    TerminatedBytes      00 → 01 01, 01 → 01 02, everything else as it is, then the terminator 00
    Utf8                 u16 length, then the text in UTF-8
    VarBytes             u32 length, then the bytes
    Array<T>             u16 count, then the elements

An encoder raises `InvalidInput` or `TooLarge`; a `Reader` raises `CorruptionError`, with `what` was
read and `where`, the byte position. Which records exist is left to the modules beside this one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from millstream.errors import CorruptionError, InvalidInput, TooLarge

T = TypeVar("T")

VERSION: Final = 0x01
"""The first byte of every key."""

ARRAY_COUNT_MAX: Final = 0xFFFF
"""Elements in one `Array<T>`: it counts in a u16."""

UTF8_BYTES_MAX: Final = 0xFFFF
"""Bytes in one `Utf8`: its length is a u16."""

VAR_BYTES_MAX: Final = 0xFFFF_FFFF
"""Bytes in one `VarBytes`: its length is a u32."""

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_KEY_U16 = struct.Struct(">H")
_KEY_U32 = struct.Struct(">I")
_KEY_U64 = struct.Struct(">Q")

_I64_SIGN = 1 << 63


def _packer(layout: struct.Struct, name: str) -> Callable[[int], bytes]:
    def encode(value: int) -> bytes:
        try:
            return layout.pack(value)
        except struct.error:
            raise InvalidInput(f"{value!r} is not a {name}", value=value, type=name) from None

    encode.__name__ = encode.__qualname__ = f"encode_{name}"
    encode.__doc__ = f"Encode one {name}; a number outside its range is `InvalidInput`."
    return encode


encode_u8 = _packer(_U8, "u8")
encode_u16 = _packer(_U16, "u16")
encode_u32 = _packer(_U32, "u32")
encode_u64 = _packer(_U64, "u64")
encode_i64 = _packer(_I64, "i64")
encode_key_u8 = _packer(_U8, "key_u8")
encode_key_u16 = _packer(_KEY_U16, "key_u16")
encode_key_u32 = _packer(_KEY_U32, "key_u32")
encode_key_u64 = _packer(_KEY_U64, "key_u64")


def encode_key_i64(value: int) -> bytes:
    """Encode a signed number so that the bytes sort as the numbers do."""
    if not -_I64_SIGN <= value < _I64_SIGN:
        raise InvalidInput(f"{value!r} is not a key_i64", value=value, type="key_i64")
    return _KEY_U64.pack(value + _I64_SIGN)


def encode_terminated_bytes(raw: bytes) -> bytes:
    """Encode bytes so that they sort as the raw bytes do, also in front of the rest of a key."""
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def encode_utf8(text: str) -> bytes:
    """Encode text behind its length in bytes."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"text cannot be written as UTF-8: {error.reason}") from None
    if len(raw) > UTF8_BYTES_MAX:
        raise TooLarge(
            f"text has {len(raw)} bytes, at most {UTF8_BYTES_MAX} fit",
            limit=UTF8_BYTES_MAX,
            size=len(raw),
        )
    return _U16.pack(len(raw)) + raw


def encode_var_bytes(raw: bytes) -> bytes:
    """Encode bytes behind their length."""
    if len(raw) > VAR_BYTES_MAX:
        raise TooLarge(
            f"{len(raw)} bytes, at most {VAR_BYTES_MAX} fit", limit=VAR_BYTES_MAX, size=len(raw)
        )
    return _U32.pack(len(raw)) + raw


def encode_array_count(count: int) -> bytes:
    """Encode the count that an array starts with, for callers that join the elements themselves."""
    if count > ARRAY_COUNT_MAX:
        raise TooLarge(
            f"array of {count} elements, at most {ARRAY_COUNT_MAX} fit",
            limit=ARRAY_COUNT_MAX,
            size=count,
        )
    return encode_u16(count)


def encode_array(elements: Sequence[bytes]) -> bytes:
    """Join elements that are already encoded into an array."""
    return b"".join((encode_array_count(len(elements)), *elements))


def encode_key_prefix(record_type: int) -> bytes:
    """Encode what every key starts with: the version and the type of its record."""
    return bytes((VERSION,)) + encode_key_u8(record_type)


class Reader:
    """Reads values one after the other from bytes, and never past their end.

    `what` names the thing that is read, in errors. A memoryview is copied once, at the start.
    """

    __slots__ = ("data", "position", "what")

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data = data if type(data) is bytes else bytes(data)
        self.position = 0
        self.what = what

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return len(self.data) - self.position

    def corrupt(self, problem: str, *, where: int | None = None) -> CorruptionError:
        """Return the error to raise for a problem at `where`, or else at the current position."""
        at = self.position if where is None else where
        return CorruptionError(f"{self.what}: {problem} at byte {at}", what=self.what, where=at)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the fields of a fixed layout in one step."""
        if layout.size > self.remaining:
            raise self.corrupt(f"{layout.size} bytes expected, {self.remaining} left")
        fields = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return fields

    def u8(self) -> int:
        """Read a u8 of a value or a key."""
        return self._integer(_U8)

    def u16(self) -> int:
        """Read a u16 of a value."""
        return self._integer(_U16)

    def u32(self) -> int:
        """Read a u32 of a value."""
        return self._integer(_U32)

    def u64(self) -> int:
        """Read a u64 of a value."""
        return self._integer(_U64)

    def i64(self) -> int:
        """Read an i64 of a value."""
        return self._integer(_I64)

    def key_u16(self) -> int:
        """Read a u16 of a key."""
        return self._integer(_KEY_U16)

    def key_u32(self) -> int:
        """Read a u32 of a key."""
        return self._integer(_KEY_U32)

    def key_u64(self) -> int:
        """Read a u64 of a key."""
        return self._integer(_KEY_U64)

    def key_i64(self) -> int:
        """Read an i64 of a key."""
        return self._integer(_KEY_U64) - _I64_SIGN

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        if not 0 <= size <= self.remaining:
            raise self.corrupt(f"{size} bytes expected, {self.remaining} left")
        start = self.position
        self.position = start + size
        return self.data[start : self.position]

    def rest(self) -> bytes:
        """Read everything that is left."""
        return self.take(self.remaining)

    def terminated_bytes(self) -> bytes:
        """Read a `TerminatedBytes`, and give back the raw bytes."""
        start = self.position
        stop = self.data.find(b"\x00", start)
        if stop < 0:
            raise self.corrupt("TerminatedBytes without a terminator")
        # A run of 01 starts with an escape, so replacing pairs from the left keeps them aligned.
        halfway = self.data[start:stop].replace(b"\x01\x01", b"\x00")
        if halfway.count(b"\x01") != halfway.count(b"\x01\x02"):
            raise self.corrupt("TerminatedBytes with an unknown escape")
        self.position = stop + 1
        return halfway.replace(b"\x01\x02", b"\x01")

    def utf8(self, *, bytes_max: int = UTF8_BYTES_MAX) -> str:
        """Read a `Utf8` of at most `bytes_max` bytes."""
        start = self.position
        size = self.u16()
        if size > bytes_max:
            raise self.corrupt(f"text of {size} bytes, at most {bytes_max} allowed", where=start)
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("text is not UTF-8", where=start + 2 + error.start) from None

    def var_bytes(self) -> bytes:
        """Read a `VarBytes`."""
        return self.take(self.u32())

    def array_count(self, *, element_bytes_min: int) -> int:
        """Read the count of an array, and refuse one that cannot fit into what is left."""
        start = self.position
        count = self.u16()
        if count * element_bytes_min > self.remaining:
            raise self.corrupt(f"array of {count} elements in {self.remaining} bytes", where=start)
        return count

    def array(self, read: Callable[[], T], *, element_bytes_min: int) -> list[T]:
        """Read an array whose elements `read` takes from this reader, one per call."""
        count = self.array_count(element_bytes_min=element_bytes_min)
        return [read() for _ in range(count)]

    def key_prefix(self, record_type: int) -> None:
        """Read the start of a key, and refuse any other version or type."""
        if (version := self.u8()) != VERSION:
            raise self.corrupt(f"unknown version {version:#04x}", where=self.position - 1)
        if (found := self.u8()) != record_type:
            raise self.corrupt(
                f"type {found:#04x} instead of {record_type:#04x}", where=self.position - 1
            )

    def finish(self) -> None:
        """Refuse bytes after the end of the value."""
        if self.remaining:
            raise self.corrupt(f"{self.remaining} bytes too many")

    def _integer(self, layout: struct.Struct) -> int:
        number: int = self.unpack(layout)[0]
        return number
