"""The logs of a queue itself, and the ids of the messages that were put into these logs."""

from __future__ import annotations

INBOX = "queue:"
LATER = "queue-later:"
LATER_ID = 2**52
"""Ids of messages put for later start here: this number plus the offset."""


def inbox_of(queue: str) -> str:
    """Return the log to which messages put into a queue are appended."""
    return f"{INBOX}{queue}"


def later_of(queue: str) -> str:
    """Return the log of messages put for later; the commit of a put also places them."""
    return f"{LATER}{queue}"


def own_logs(queue: str) -> tuple[str, str]:
    """Return the logs of messages put into a queue, for now and for later."""
    return inbox_of(queue), later_of(queue)


def put_id(queue: str, log: str, offset: int) -> int | None:
    """Return the id that `put` returned for a message; None for a record of another log."""
    if log == inbox_of(queue):
        return offset
    return LATER_ID + offset if log == later_of(queue) else None


def place_of_put(queue: str, id: int) -> tuple[str, int]:
    """Return the log and the offset of a message, by the id that `put` returned."""
    if id >= LATER_ID:
        return later_of(queue), id - LATER_ID
    return inbox_of(queue), id
