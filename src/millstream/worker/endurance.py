"""Endurance: which errors a worker survives, and for how long."""

from __future__ import annotations

from millstream.errors import CannotOpen, MillstreamError, OutcomeUnknown

REPEATS = 100
"""How often a commit is repeated that failed for a reason that may pass."""


def may_pass(error: Exception) -> bool:
    """Whether a worker goes on after an error: a repeat is harmless, and may succeed later.

    A server may be away, or an outcome unknown: an attempt that was ended is ended again without
    harm.
    """
    if not isinstance(error, MillstreamError):
        return False
    return error.retry or isinstance(error, OutcomeUnknown) or is_away(error)


def is_away(error: Exception) -> bool:
    """Whether a server cannot be reached now."""
    return isinstance(error, CannotOpen) and bool(error.data.get("again"))


class Endurance:
    """How often a commit may fail. A worker waits for an unreachable server until a stop."""

    def __init__(self) -> None:
        self._tries = 0

    def bears(self, error: Exception, *, is_stopping: bool) -> bool:
        """Whether to try again after another failure."""
        if is_away(error):  # the session has been patient already
            return not is_stopping
        self._tries += 1
        return may_pass(error) and self._tries <= REPEATS
