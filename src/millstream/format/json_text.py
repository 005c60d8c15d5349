"""JSON texts that came as bytes: whether every reader can decode one; pure.

The grammar of JSON allows more than a decoder can give back: `1e999` is a number to it, and no
float is that large. So a text counts as JSON here only if it was decoded once, in full.
"""

from __future__ import annotations

import msgspec

from millstream.errors import InvalidInput

_decode = msgspec.json.Decoder().decode


def check_json_text(data: bytes, what: str) -> None:
    """Refuse bytes that a reader could not decode as JSON; the error says `what` they are."""
    try:
        _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise InvalidInput(f"{what} is JSON that readers can decode: {error}") from error


def is_json_text(data: bytes) -> bool:
    """Whether every reader can decode bytes as JSON."""
    try:
        _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
