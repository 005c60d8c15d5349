"""The users of logs: the parts whose data or position keeps records of a log from being deleted.

Retention asks every part before bytes go. The parts (queues, forks, hashes for replicas) are handed to
the store as one `LogUsers` when it is opened, so neither the store nor the logs know them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.store.state.view import View

NO_END = 2**63
"""The end of an unbounded range of offsets."""

Pin = Callable[[View, int], list[tuple[int, int]]]
"""Returns the ranges of offsets of a log that a part still needs, for the id of the log."""

Readers = Callable[[View, int], list[int]]
"""Returns the offset up to which each reader of a log has consumed it, for the id of the log."""


class LogUsers(NamedTuple):
    """What the parts of the program need of logs."""

    pins: tuple[Pin, ...]
    readers: tuple[Readers, ...]
    """Called for logs with retention by consumption."""


def pinned(view: View, log_id: int) -> list[tuple[int, int]]:
    """Return the ranges of a log's offsets whose bytes some part still needs."""
    return [needed for pin in view.state.part(LogUsers).pins for needed in pin(view, log_id)]


def passed(view: View, log_id: int) -> list[int]:
    """Return the offset up to which each reader has consumed a log, in any order."""
    return [
        offset for readers in view.state.part(LogUsers).readers for offset in readers(view, log_id)
    ]
