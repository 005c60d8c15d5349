"""Records as values of a type: decoded from JSON, with the defaults of the type for missing fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from millstream.errors import InvalidInput
from millstream.record import Record

DECODERS_MAX = 256


def decoder_of(kind: Any) -> Callable[[Record], Any]:
    """Return the function that makes a value of a type from a record; a tombstone becomes None."""
    try:
        return _decoder(kind)
    except TypeError as error:
        try:
            hash(kind)
        except TypeError:
            return _new_decoder(kind)
        raise InvalidInput(f"records cannot be read as {kind!r:.100}: {error}") from error


@lru_cache(maxsize=DECODERS_MAX)
def _decoder(kind: Any) -> Callable[[Record], Any]:
    return _new_decoder(kind)


def _new_decoder(kind: Any) -> Callable[[Record], Any]:
    decode = msgspec.json.Decoder(kind).decode

    def decoded(record: Record) -> Any:
        if record.value is None:
            return None
        try:
            return decode(record.value)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            name = getattr(kind, "__name__", repr(kind))
            raise InvalidInput(
                f"record {record.offset} of log {record.log!r} is no {name}: {error}; read it without "
                "a type to see it",
                log=record.log,
                offset=record.offset,
            ) from error

    return decoded
