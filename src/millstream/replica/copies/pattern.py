"""Patterns: which logs a sync takes, by their names; internal logs only on request."""

from __future__ import annotations

from fnmatch import fnmatchcase

from millstream.log.model.names import PRIVATE
from millstream.log.rules.ancestry import FORK_NAME
from millstream.partitioning import whole_of


def takes(pattern: str, name: str) -> bool:
    """Whether a pattern matches a log, or the log of which it is a partition.

    Internal logs match only if the pattern begins with their prefix literally, and set-aside forks
    only if the pattern contains `~fork-`.
    """
    if pattern in (name, whole_of(name)):
        return True
    if any(name.startswith(prefix) and not pattern.startswith(prefix) for prefix in PRIVATE):
        return False
    if FORK_NAME in name and FORK_NAME not in pattern:
        return False
    return fnmatchcase(name, pattern) or fnmatchcase(whole_of(name), pattern)
