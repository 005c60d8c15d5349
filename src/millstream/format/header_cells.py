"""Headers in the cell of a record: a MessagePack map, or pairs if a name is repeated.

A record without headers has an empty cell. `msgspec` alone encodes and checks the common case, a map of
plain values. Only cells that it refuses are checked in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from millstream.errors import InvalidInput
from millstream.header import Headers, HeadersLike, Plain, as_plain
from millstream.limits import Limits, too_large

CONTENT_TYPE = "content-type"
NO_HEADERS = b""

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_PlainMap = dict[str, str | _Int64 | float | bool | None]
"""The headers of most records: no repeated name, and no bytes as a value."""

_decode_map = msgspec.msgpack.Decoder(_PlainMap).decode
_decode_maps = msgspec.msgpack.Decoder(list[_PlainMap]).decode
_decode_any = msgspec.msgpack.Decoder(dict[str, Any] | tuple[tuple[str, Any], ...]).decode
_split = msgspec.msgpack.Decoder(list[Raw]).decode
_encode = msgspec.msgpack.Encoder().encode

_KINDS = frozenset((str, bytes, int, float, bool, type(None)))
_EMPTY = _encode({})
_ARRAY = b"\xdd"
"""MessagePack's mark of an array whose length follows in four bytes."""


def pack_headers(headers: HeadersLike | None, kind: str | None, limits: Limits) -> bytes:
    """Encode headers as a MessagePack map, or as an array of pairs if a name is repeated.

    Values are text, bytes, an integer, a float, a bool or null. `kind` is added as the content type
    unless the headers have one.
    """
    try:
        if kind is None and type(headers) is dict:
            data = _encode(headers)
        else:
            data = _packed(headers, kind)
        try:
            _decode_map(data)
        except msgspec.ValidationError:
            check_cell(data)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise bad_headers(error) from error
    if len(data) > limits.headers_bytes_max:
        raise too_large("a record's headers", len(data), limits.headers_bytes_max)
    return NO_HEADERS if data == _EMPTY else data


def _packed(headers: HeadersLike | None, kind: str | None) -> bytes:
    if kind is None and type(headers) is Headers and type(headers.held) is bytes:
        return headers.held or _EMPTY  # the bytes of a record that was read
    plain: Plain = {} if headers is None else as_plain(headers)
    if kind is None:
        return _encode(plain)
    if isinstance(plain, dict):
        return _encode(plain if CONTENT_TYPE in plain else {**plain, CONTENT_TYPE: kind})
    return _encode(plain if CONTENT_TYPE in dict(plain) else (*plain, (CONTENT_TYPE, kind)))


def check_cell(data: bytes) -> Plain:
    """Decode packed headers; raise an error of `msgspec` or a `ValueError` for invalid headers.

    Headers have one valid form: pairs if a name is repeated, otherwise a map.
    """
    try:
        return _decode_map(data)  # type: ignore[return-value]
    except msgspec.ValidationError:
        plain: Plain = _decode_any(data)
    pairs = plain.items() if isinstance(plain, dict) else plain
    for name, value in pairs:
        if type(value) not in _KINDS:
            raise ValueError(f"{name!r:.100} holds {type(value).__name__}")
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name!r:.100} is {value}, which has more than 64 bits")
    if isinstance(plain, tuple) and len(dict(plain)) == len(plain):
        raise ValueError("pairs in which no name is repeated; such headers are a map")
    return plain


def check_cells(data: bytes) -> list[int]:
    """Check an array of packed headers, and return the size of each element."""
    sizes = list(map(len, cells := _split(data)))
    try:
        _decode_maps(data)
    except msgspec.ValidationError:
        for cell in cells:
            check_cell(bytes(cell))
    return sizes


def pack_header_column(
    headers: Sequence[HeadersLike | None] | None,
    kinds: Sequence[str | None] | None,
    count: int,
    limits: Limits,
) -> Sequence[bytes] | None:
    """Encode the headers of several records with their content types; return None if no record has a header."""
    if headers is None and kinds is None:
        return None
    if kinds is None and headers is not None and _are_dicts(headers):
        packed = _pack_plain_headers(headers, limits)
        if packed is not None:
            return packed
    return [
        pack_headers(record_headers, kind, limits) if record_headers or kind else NO_HEADERS
        for record_headers, kind in zip(
            headers or [None] * count, kinds or [None] * count, strict=True
        )
    ]


def _are_dicts(headers: Sequence[Any]) -> bool:
    return list(map(type, headers)).count(dict) == len(headers)


def _pack_plain_headers(headers: Sequence[Any], limits: Limits) -> list[bytes] | None:
    """Encode and check the common case in one step; None if a cell needs a check in Python."""
    try:
        packed = list(map(_encode, headers))
        _decode_maps(array_of(packed))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if max(map(len, packed)) > limits.headers_bytes_max:
        return None
    return packed if all(headers) else [NO_HEADERS if cell == _EMPTY else cell for cell in packed]


def bad_headers(error: Exception) -> InvalidInput:
    """Return the error for invalid headers."""
    return InvalidInput(
        f"a header has text as its name, and text, bytes, a 64-bit integer, a float, a bool or null "
        f"as its value: {error}"
    )


def array_of(maps: Sequence[bytes]) -> bytes:
    """Join the packed headers of several records into a MessagePack array."""
    return b"".join((_ARRAY, len(maps).to_bytes(4, "big"), *maps))
