"""The counters of a worker."""

from __future__ import annotations

from msgspec import Struct


class WorkerStats(Struct, frozen=True, kw_only=True):
    """The counters of a worker since it was made."""

    done: int = 0
    failed: int = 0
    """Rejected messages, and messages without further attempts."""
    retried: int = 0
    lost: int = 0
    """Handled messages that another worker has by now, because the lease had ended; or overdue
    ones."""
    running: int = 0
