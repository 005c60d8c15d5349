"""Which logs a sync takes: those that its pattern matches, but for internal ones."""

from __future__ import annotations

from fnmatch import fnmatchcase

from millstream.log.model.names import PRIVATE
from millstream.log.rules.ancestry import FORK_NAME
from millstream.partitioning import whole_of


def takes(pattern: str, name: str) -> bool:
    """Whether a pattern matches a log, or the log that it is a partition of.

    Internal logs and set-aside forks match only if the pattern contains their prefix, or `~fork-`,
    literally.
    """
    if pattern in (name, whole_of(name)):
        return True
    if any(name.startswith(one) and not pattern.startswith(one) for one in PRIVATE):
        return False
    if FORK_NAME in name and FORK_NAME not in pattern:
        return False
    return fnmatchcase(name, pattern) or fnmatchcase(whole_of(name), pattern)
