"""Which logs a sync takes: those whose names a pattern means, but for what is somebody's own."""

from __future__ import annotations

from fnmatch import fnmatchcase

from millstream.log.ancestry import FORK_NAME

PRIVATE = ("queue:", "queue-later:", "millstream:")
"""What queues and the store keep for themselves."""


def takes(pattern: str, name: str) -> bool:
    """Whether a pattern means a log.

    What is private, and tails that were set aside, stay where they are, unless the pattern says
    their names' beginning, or `~fork-`, in so many words.
    """
    if name == pattern:
        return True
    if any(name.startswith(one) and not pattern.startswith(one) for one in PRIVATE):
        return False
    if FORK_NAME in name and FORK_NAME not in pattern:
        return False
    return fnmatchcase(name, pattern)
