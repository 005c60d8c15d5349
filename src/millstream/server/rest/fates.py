"""The fate of a message over REST: its state, and its note as JSON or base64."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, Raw, Struct, UnsetType

from millstream.format.json_text import is_json_text
from millstream.queue.model.message import Fate, State


class ShownFate(Struct, kw_only=True):
    """The fate of a message. A note that is JSON is shown as JSON, and otherwise in base64."""

    state: State
    claim_id: int | None
    attempts: int
    until: datetime | None
    reason: str
    is_cancel_requested: bool = False
    result: Raw | UnsetType = UNSET
    """The result of a done message."""
    result_base64: bytes | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    """The error of the last attempt."""
    error_base64: bytes | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET
    """The last progress of a message that is not done."""
    progress_base64: bytes | UnsetType = UNSET


def show_fate(fate: Fate) -> ShownFate:
    """Return the fate of a message as REST shows it."""
    result, result_base64 = _shown(fate.result)
    error, error_base64 = _shown(fate.error)
    progress, progress_base64 = _shown(fate.progress)
    return ShownFate(
        state=fate.state,
        claim_id=fate.claim_id,
        attempts=fate.attempts,
        until=fate.until,
        reason=fate.reason,
        is_cancel_requested=fate.is_cancel_requested,
        result=result,
        result_base64=result_base64,
        error=error,
        error_base64=error_base64,
        progress=progress,
        progress_base64=progress_base64,
    )


def _shown(note: bytes | None) -> tuple[Raw | UnsetType, bytes | UnsetType]:
    """Return a note as JSON text, or as bytes."""
    if note is None:
        return UNSET, UNSET
    return (Raw(note), UNSET) if is_json_text(note) else (UNSET, note)
