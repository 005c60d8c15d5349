"""Headers as a record's cell holds them: a MessagePack map, or pairs where a name is repeated.

A record without headers has the empty cell. The common case, a map of plain values, is encoded and
checked by `msgspec` alone; only what that refuses is looked at closely.
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
"""What the headers of most records are: no name is repeated, and no value is bytes."""

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
    """Headers as a MessagePack map, or as an array of pairs where a name is repeated.

    Values are text, bytes, an integer, a float, a bool or null. `kind` is a content type that is
    added unless they name one.
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
        return headers.held or _EMPTY  # as they were read
    found: Plain = {} if headers is None else as_plain(headers)
    if kind is None:
        return _encode(found)
    if isinstance(found, dict):
        return _encode(found if CONTENT_TYPE in found else {**found, CONTENT_TYPE: kind})
    return _encode(found if CONTENT_TYPE in dict(found) else (*found, (CONTENT_TYPE, kind)))


def check_cell(data: bytes) -> Plain:
    """Packed headers; an error of `msgspec` or a `ValueError` if they are none.

    They have one form only: pairs where a name is repeated, else a map.
    """
    try:
        return _decode_map(data)  # type: ignore[return-value]
    except msgspec.ValidationError:
        found: Plain = _decode_any(data)
    pairs = found.items() if isinstance(found, dict) else found
    for name, value in pairs:
        if type(value) not in _KINDS:
            raise ValueError(f"{name!r:.100} holds {type(value).__name__}")
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name!r:.100} is {value}, which has more than 64 bits")
    if isinstance(found, tuple) and len(dict(found)) == len(found):
        raise ValueError("pairs in which no name is repeated; such headers are a map")
    return found


def check_cells(data: bytes) -> list[int]:
    """The same of an array of packed headers; how many bytes each of them has."""
    sizes = list(map(len, found := _split(data)))
    try:
        _decode_maps(data)
    except msgspec.ValidationError:
        for one in found:
            check_cell(bytes(one))
    return sizes


def pack_header_column(
    headers: Sequence[HeadersLike | None] | None,
    kinds: Sequence[str | None] | None,
    count: int,
    limits: Limits,
) -> Sequence[bytes] | None:
    """The headers of several records, each with the content type of its value; None if none has any."""
    if headers is None and kinds is None:
        return None
    if kinds is None and headers is not None and _are_dicts(headers):
        packed = _pack_plain_headers(headers, limits)
        if packed is not None:
            return packed
    return [
        pack_headers(one, kind, limits) if one or kind else NO_HEADERS
        for one, kind in zip(headers or [None] * count, kinds or [None] * count, strict=True)
    ]


def _are_dicts(found: Sequence[Any]) -> bool:
    return list(map(type, found)).count(dict) == len(found)


def _pack_plain_headers(headers: Sequence[Any], limits: Limits) -> list[bytes] | None:
    """The common case, encoded and checked at once; None if anything needs a closer look."""
    try:
        packed = list(map(_encode, headers))
        _decode_maps(array_of(packed))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if max(map(len, packed)) > limits.headers_bytes_max:
        return None
    return packed if all(headers) else [NO_HEADERS if one == _EMPTY else one for one in packed]


def bad_headers(error: Exception) -> InvalidInput:
    """The error for headers that are none."""
    return InvalidInput(
        f"a header has text as its name, and text, bytes, a 64-bit integer, a float, a bool or null "
        f"as its value: {error}"
    )


def array_of(maps: Sequence[bytes]) -> bytes:
    """Headers of several records, back to back, as one MessagePack array."""
    return b"".join((_ARRAY, len(maps).to_bytes(4, "big"), *maps))
