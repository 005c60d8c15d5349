"""Progress of a job: a fraction and a text, as JSON in the note of its message."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput

TEXT_CHARS_MAX = 1_000


class JobProgress(Struct, frozen=True, omit_defaults=True):
    """How far a running job has come."""

    fraction: float
    """From 0 to 1."""
    text: str = ""


def progress_of(fraction: Any, text: Any) -> JobProgress:
    """Return a valid progress."""
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not (is_number and 0 <= fraction <= 1):
        raise InvalidInput(f"progress is a number from 0 to 1, not {fraction!r:.100}")
    if not isinstance(text, str):
        raise InvalidInput(f"the text of a progress is a str, not {text!r:.100}")
    return JobProgress(float(fraction), text[:TEXT_CHARS_MAX])


encode_progress = msgspec.json.Encoder().encode


def decode_progress(encoded: bytes | None) -> JobProgress | None:
    """Return a stored progress, or None for a job without progress."""
    try:
        return None if encoded is None else msgspec.json.decode(encoded, type=JobProgress)
    except msgspec.MsgspecError:
        return None
