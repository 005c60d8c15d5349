"""Keys, values and headers of records as JSON, and back, without loss.

A value is JSON, text or base64; a field beside the value names the encoding. Headers are a JSON object, or a list
of pairs if a name repeats; `{"base64": …}` is bytes, and `{"float": "nan"}` a number that JSON lacks.
Pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
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

_BLANK = b" \t\r\n"
_decode_json = msgspec.json.Decoder().decode
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


def encode_value(value: bytes | None, *, is_json: bool) -> tuple[Raw | str | None, str]:
    """Return a value for a line of JSON, and its encoding.

    The line contains the bytes of JSON unchanged, so that an import restores the bytes. JSON with line breaks is text.
    """
    if is_json and value is not None and _is_embeddable(value):
        return Raw(value), EMBEDDED
    return text_or_base64(value)


def _is_embeddable(value: bytes) -> bool:
    if not value or value[0] in _BLANK or value[-1] in _BLANK or b"\n" in value or b"\r" in value:
        return False
    try:
        _decode_json(value)
    except _UNREADABLE:
        return False
    return True


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
def encode_headers(cell: bytes) -> tuple[Raw, bool]:
    """Return packed headers as JSON; and whether they name JSON as the content type."""
    headers = Headers(cell)
    plain = headers.plain()
    shown: Any
    if isinstance(plain, dict):
        shown = {name: _shown(value) for name, value in plain.items()}
    else:
        shown = [(name, _shown(value)) for name, value in plain]
    return Raw(_encode_json(shown)), headers.get(CONTENT_TYPE) == JSON


def _shown(value: HeaderValue) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    return value


@lru_cache(maxsize=CELLS_REMEMBERED)
def decode_headers(data: bytes, content_type: str = "") -> Headers:
    """Return headers from JSON, checked and packed. `content_type` is added to headers without a content type."""
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
    return Headers(pack_headers(pairs, content_type or None, Limits()))


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
