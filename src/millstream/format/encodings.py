"""The common encodings: integers, strings, byte strings and arrays, as pure functions.

Invariant: a reader accepts only the bytes that the encoder writes for the same value. No reader loops
or allocates by a length that the input does not have.

    u16 u64 i64          little-endian in values
    key_u64              big-endian in keys, so that they sort as numbers
    TerminatedBytes      00 → 01 01, 01 → 01 02, everything else as it is, then the terminator 00
    Utf8                 u16 length, then the text in UTF-8
    Array<T>             u16 count, then the elements

An encoder raises `InvalidInput` or `TooLarge`. A `Reader` raises `CorruptionError` with `what`, the
name of the value, and `where`, the byte position. Other modules define the records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from millstream.errors import CorruptionError, InvalidInput, TooLarge

VERSION: Final = 0x01
"""The first byte of every key."""

ARRAY_COUNT_MAX: Final = 0xFFFF
"""Maximum of elements in an `Array<T>`, whose count is a u16."""

UTF8_BYTES_MAX: Final = 0xFFFF
"""Maximum of bytes in a `Utf8`, whose length is a u16."""

U8 = struct.Struct("<B")
U16 = struct.Struct("<H")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")
KEY_U64 = struct.Struct(">Q")


def encode_number(layout: struct.Struct, value: int) -> bytes:
    """Encode one integer; a number outside its range is `InvalidInput`."""
    try:
        return layout.pack(value)
    except struct.error as error:
        raise InvalidInput(f"{value!r} cannot be encoded: {error}", value=value) from None


encode_u64 = partial(encode_number, U64)


def encode_terminated_bytes(raw: bytes) -> bytes:
    """Encode bytes so that they sort as the raw bytes do, also before further fields of a key."""
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
    return U16.pack(len(raw)) + raw


def encode_array(elements: Sequence[bytes]) -> bytes:
    """Join elements that are already encoded into an array."""
    if len(elements) > ARRAY_COUNT_MAX:
        raise TooLarge(
            f"array of {len(elements)} elements, at most {ARRAY_COUNT_MAX} fit",
            limit=ARRAY_COUNT_MAX,
            size=len(elements),
        )
    return b"".join((U16.pack(len(elements)), *elements))


class Reader:
    """Reads successive values from bytes, and never past the end.

    `what` names the value in errors.
    """

    __slots__ = ("data", "position", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.position = 0
        self.what = what

    @property
    def remaining(self) -> int:
        """The number of unread bytes."""
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

    def number(self, layout: struct.Struct) -> int:
        """Read one integer."""
        value: int = self.unpack(layout)[0]
        return value

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        if size > self.remaining:
            raise self.corrupt(f"{size} bytes expected, {self.remaining} left")
        start = self.position
        self.position = start + size
        return self.data[start : self.position]

    def terminated_bytes(self) -> bytes:
        """Read a `TerminatedBytes`, and return the raw bytes."""
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
        size = self.number(U16)
        if size > bytes_max:
            raise self.corrupt(f"text of {size} bytes, at most {bytes_max} allowed", where=start)
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("text is not UTF-8", where=start + 2 + error.start) from None

    def array_count(self, *, element_bytes_min: int) -> int:
        """Read the count of an array, and refuse a count that exceeds the unread bytes."""
        start = self.position
        count = self.number(U16)
        if count * element_bytes_min > self.remaining:
            raise self.corrupt(f"array of {count} elements in {self.remaining} bytes", where=start)
        return count

    def key_prefix(self, record_type: int) -> None:
        """Read the start of a key, and refuse any other version or type."""
        if (version := self.number(U8)) != VERSION:
            raise self.corrupt(f"unknown version {version:#04x}", where=self.position - 1)
        if (stored_type := self.number(U8)) != record_type:
            raise self.corrupt(
                f"type {stored_type:#04x} instead of {record_type:#04x}", where=self.position - 1
            )

    def finish(self) -> None:
        """Refuse bytes after the end of the value."""
        if self.remaining:
            raise self.corrupt(f"{self.remaining} bytes too many")
