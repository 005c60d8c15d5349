"""Messages of no store, for tests of what is decided about them."""

from __future__ import annotations

from millstream.queue.model.message import Label, Message


def message(claim_id: int, *, attempt: int = 1, value: bytes = b"") -> Message:
    """A claimed message of the queue `jobs`."""
    label = Label("jobs", "jobs", claim_id, claim_id, attempt, 0, None, b"")
    return Message(label, 0, value)
