"""The fate of a message over REST: its state, and its note as JSON or base64."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, Raw, Struct, UnsetType

from millstream.format.json_text import is_json_text
from millstream.queue.model.message import Fate, State


class ShownFate(Struct, kw_only=True):
    """The fate of a message. A note that is JSON is shown as JSON, and otherwise in base64."""

    state: State
    """The current state."""
    claim_id: int | None
    """The number of the message in the queue, once it is routed."""
    attempts: int
    """The number of claims."""
    until: datetime | None
    """When the message is due, its lease ends, or its last attempt ended."""
    reason: str
    """Why the message failed, or why its last attempt ended."""
    is_cancel_requested: bool = False
    """Whether the message is in flight, and its consumer is asked to stop."""
    result: Raw | UnsetType = UNSET
    """The result of a done message, if it is JSON."""
    result_base64: bytes | UnsetType = UNSET
    """The result of a done message, if it is not JSON."""
    error: Raw | UnsetType = UNSET
    """The error of the last attempt, if it is JSON."""
    error_base64: bytes | UnsetType = UNSET
    """The error of the last attempt, if it is not JSON."""
    progress: Raw | UnsetType = UNSET
    """The last progress of a message that is not done, if it is JSON."""
    progress_base64: bytes | UnsetType = UNSET
    """The last progress of a message that is not done, if it is not JSON."""


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
