"""Notes: what consumers leave behind about a message, in a row of its own beside the bucket.

A message has a note only if a consumer gave a result, an error or a progress. The row goes when the
queue forgets the message.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput, TooLarge
from millstream.limits import ERROR_BYTES_MAX, PROGRESS_BYTES_MAX

Result = tuple[int, bytes]
"""A claim id, and the result of the message."""


class Note(Struct, array_like=True, frozen=True):
    """The note of one message."""

    result: bytes | None = None
    """The result that came with the acknowledgement."""
    error: bytes | None = None
    """The error of the last attempt that was given back or failed with an error."""
    progress: bytes | None = None
    """The last progress of the present attempt."""


NO_NOTE = Note()

encode_note = msgspec.msgpack.Encoder().encode
decode_note = msgspec.msgpack.Decoder(Note).decode


def check_result(result: Any, bytes_max: int) -> bytes:
    """Return a result; refuse other types and results over the limit for values."""
    return _checked("a result", result, bytes_max)


def check_error(error: Any) -> bytes:
    """Return an error; refuse other types and errors over `ERROR_BYTES_MAX`."""
    return _checked("an error", error, ERROR_BYTES_MAX)


def check_progress(progress: Any) -> bytes:
    """Return a progress; refuse other types and progress over `PROGRESS_BYTES_MAX`."""
    return _checked("a progress", progress, PROGRESS_BYTES_MAX)


def _checked(what: str, value: Any, bytes_max: int) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput(f"{what} is bytes, not {type(value).__name__}: encode it first")
    if len(value) > bytes_max:
        raise TooLarge(
            f"{what} has up to {bytes_max:,} bytes, not {len(value):,}; nothing was changed. "
            "Store large data elsewhere, and a reference to it here",
            size=len(value),
            limit=bytes_max,
        )
    return value
