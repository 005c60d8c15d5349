"""Endurance: which errors a worker goes on after, and for how long."""

from __future__ import annotations

from millstream.errors import CannotOpen, MillstreamError, OutcomeUnknown

REPEATS = 100
"""How often a commit is tried again that failed for a reason that may pass."""


def may_pass(error: Exception) -> bool:
    """Whether a worker goes on after an error: what it does may be repeated, and succeed later.

    So it is with a server that is away, and with an unknown outcome: an attempt that was
    ended is ended again without harm.
    """
    if not isinstance(error, MillstreamError):
        return False
    return error.retry or isinstance(error, OutcomeUnknown) or is_away(error)


def is_away(error: Exception) -> bool:
    """Whether there is a server that cannot be reached now."""
    return isinstance(error, CannotOpen) and bool(error.data.get("again"))


class Endurance:
    """How often one commit may fail. A server that is away is waited for until a stop."""

    def __init__(self) -> None:
        self._tries = 0

    def bears(self, error: Exception, *, is_stopping: bool) -> bool:
        """Whether to try again after one more failure."""
        if is_away(error):  # the session has been patient already
            return not is_stopping
        self._tries += 1
        return may_pass(error) and self._tries <= REPEATS
