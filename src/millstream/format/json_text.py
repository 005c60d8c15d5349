"""Checks of JSON texts in bytes: every reader must be able to decode them.

The grammar of JSON allows more than a decoder can return: `1e999` is a valid number, and no float is
that large. So a text counts as JSON only after a complete decode.
"""

from __future__ import annotations

import msgspec

from millstream.errors import InvalidInput

_decode = msgspec.json.Decoder().decode


def check_json_text(data: bytes, name: str) -> None:
    """Refuse bytes that a reader could not decode as JSON; the error contains their `name`."""
    try:
        _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise InvalidInput(f"{name} is JSON that readers can decode: {error}") from error


def is_json_text(data: bytes) -> bool:
    """True if every reader can decode bytes as JSON."""
    try:
        _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
