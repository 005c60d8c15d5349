"""Keys, values and headers of records as JSON, and back, without loss.

A value is JSON, text or base64; a field beside the value names the encoding. Headers are a JSON object, or a list
of pairs if a name repeats; `{"base64": …}` is bytes, and `{"float": "nan"}` a number that JSON lacks.
Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from math import isfinite
from typing import Any

import msgspec
from msgspec import Raw

from millstream.errors import InvalidInput
from millstream.format.header_cells import CONTENT_TYPE, pack_headers
from millstream.format.packing import JSON
from millstream.header import Headers, HeaderValue
from millstream.limits import Limits

NULL, TEXT, BASE64, EMBEDDED = "null", "text", "base64", "json"

CELLS_REMEMBERED = 4_096
"""Headers that are converted once: most records of a log have the headers of others."""

_NOT_EMBEDDABLE = (b"\r", b"\n\n", b"\n ", b"\n\t", b" \n", b"\t\n")
"""Marks of an empty value, and of blanks and line breaks at an end; values lie between line breaks."""

_ESCAPED = re.compile(rb'[\x00-\x09\x0b-\x1f"\\\x7f]')
"""Characters that JSON escapes, but for the line break, which separates cells here."""

ShownCells = tuple[Sequence[str], Iterable[str]]
"""Cells as texts of JSON, and the encoding of each."""

_decode_json = msgspec.json.Decoder().decode
_split_lines = msgspec.json.Decoder(Raw).decode_lines
_decode_text = msgspec.json.Decoder(str).decode
_encode_json = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def text_or_base64(data: bytes | None) -> tuple[str | None, str]:
    """Return bytes as text, or as base64 if they are not UTF-8; and the encoding."""
    if data is None:
        return None, NULL
    try:
        return data.decode(), TEXT
    except UnicodeDecodeError:
        return b64encode(data).decode(), BASE64


def shown_values(values: Sequence[bytes | None], are_json: Sequence[bool]) -> ShownCells:
    """Return values as JSON, and the encoding of each.

    `are_json` says whether a record has the content type of JSON. The bytes of JSON are shown
    unchanged, so that an import restores them. JSON with line breaks is text.
    """
    if all(are_json):
        texts = _embeddable_texts(values)
        if texts is not None:
            return texts, repeat(EMBEDDED, len(texts))
    if not any(are_json):
        return shown_cells(values)
    shown = [
        (value.decode(), EMBEDDED)
        if is_json and value is not None and _embeddable_texts([value]) is not None
        else _shown_bytes(value)
        for value, is_json in zip(values, are_json, strict=True)
    ]
    return [text for text, _ in shown], [encoding for _, encoding in shown]


def shown_cells(cells: Sequence[bytes | None]) -> ShownCells:
    """Return bytes as texts of JSON, and the encoding of each."""
    texts = _quoted_texts(cells)
    if texts is not None:
        return texts, repeat(TEXT, len(texts))
    shown = [_shown_bytes(cell) for cell in cells]
    return [text for text, _ in shown], [encoding for _, encoding in shown]


def _shown_bytes(data: bytes | None) -> tuple[str, str]:
    text, encoding = text_or_base64(data)
    return _encode_json(text).decode(), encoding


def _quoted_texts(cells: Sequence[bytes | None]) -> list[str] | None:
    """Return texts in quotes; None if a cell is no text, or JSON escapes one of its characters."""
    if None in cells:
        return None
    joined = b"\n".join(cells)  # type: ignore[arg-type]
    if joined.count(b"\n") >= len(cells) or _ESCAPED.search(joined) is not None:
        return None
    try:
        text = joined.decode()
    except UnicodeDecodeError:
        return None
    return f'"{text}"'.replace("\n", '"\n"').split("\n")


def _embeddable_texts(values: Sequence[bytes | None]) -> list[str] | None:
    """Return values of which each is JSON in one line; None if a value is not.

    All values are checked in a few steps, whatever their number. That takes a third of the time of a
    check of each value.
    """
    if None in values:
        return None
    joined = b"\n".join(values)  # type: ignore[arg-type]
    framed = b"\n%b\n" % joined
    if joined.count(b"\n") >= len(values) or any(mark in framed for mark in _NOT_EMBEDDABLE):
        return None
    try:
        text = joined.decode()
        sizes = list(map(len, _split_lines(joined)))
    except _UNREADABLE:
        return None
    # The decoder takes several values of a line, and a value of several lines. Equal sizes show that
    # each value is a line: lines begin and end without blanks.
    return text.split("\n") if sizes == list(map(len, values)) else None  # type: ignore[arg-type]


def decode_value(raw: Raw, encoding: str) -> bytes | None:
    """Return the bytes of a value in a line of JSON; raise `InvalidInput` for a wrong encoding."""
    if encoding == EMBEDDED:
        return bytes(raw)
    if encoding == NULL:
        if bytes(raw) != b"null":
            raise InvalidInput('the value has the encoding "null", and is not null')
        return None
    try:
        text = _decode_text(raw)
    except msgspec.ValidationError:
        raise InvalidInput(f'the value has the encoding "{encoding}", and is no text') from None
    return decode_text(text, encoding, "value")


def decode_text(text: str, encoding: str, field: str) -> bytes:
    """Return the bytes of text or base64; `field` is the name of the field for errors."""
    if encoding == BASE64:
        try:
            return b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidInput(f"the {field} is not base64: {error}") from None
    if encoding != TEXT:
        raise InvalidInput(
            f"the {field} has the encoding {encoding!r:.50}; known are json, text, base64 and null"
        )
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the {field} is not valid Unicode: {error}") from None


@lru_cache(maxsize=CELLS_REMEMBERED)
def encode_headers(cell: bytes) -> tuple[str, bool]:
    """Return packed headers as JSON; and whether they name JSON as the content type."""
    headers = Headers(cell)
    plain = headers.plain()
    shown: Any
    if isinstance(plain, dict):
        shown = {name: _shown(value) for name, value in plain.items()}
    else:
        shown = [(name, _shown(value)) for name, value in plain]
    return _encode_json(shown).decode(), headers.get(CONTENT_TYPE) == JSON


def shown_headers(cells: Sequence[bytes]) -> tuple[list[str], list[bool]]:
    """Return the packed headers of records as JSON; and which name JSON as the content type."""
    shown = {cell: encode_headers(cell) for cell in set(cells)}
    return [shown[cell][0] for cell in cells], [shown[cell][1] for cell in cells]


def _shown(value: HeaderValue) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    return value


@lru_cache(maxsize=CELLS_REMEMBERED)
def decode_headers(data: bytes, content_type: str = "") -> bytes:
    """Return headers from JSON, checked and packed; headers without a content type get `content_type`."""
    try:
        shown = _decode_json(data) if data else {}
    except _UNREADABLE as error:
        raise InvalidInput(f"the headers are not JSON: {error}") from None
    if isinstance(shown, dict):
        shown = list(shown.items())
    if not isinstance(shown, list):
        raise InvalidInput(
            "the headers are a JSON object, or a list of pairs of a name and a value"
        )
    pairs = [_pair(item) for item in shown]
    return pack_headers(pairs, content_type or None, Limits())


def _pair(item: Any) -> tuple[str, HeaderValue]:
    if not isinstance(item, list | tuple) or len(item) != 2 or not isinstance(item[0], str):
        raise InvalidInput(f"a header is a pair of a name and a value, not {item!r:.100}")
    name, value = item
    if not isinstance(value, dict):
        return name, value
    match value:
        case {"base64": str(text)} if len(value) == 1:
            return name, decode_text(text, BASE64, f"header {name!r}")
        case {"float": "nan" | "inf" | "-inf" as number} if len(value) == 1:
            return name, float(number)
    raise InvalidInput(
        f'header {name!r:.100} is an object; known are {{"base64": "…"}} and {{"float": "nan"}}'
    )
