"""The counters of a worker."""

from __future__ import annotations

from msgspec import Struct


class WorkerStats(Struct, frozen=True, kw_only=True):
    """What a worker has done since it was made."""

    done: int = 0
    failed: int = 0
    """Rejected, or out of attempts."""
    retried: int = 0
    lost: int = 0
    """Handled, but the lease had ended, and another worker has the message. Or over its time limit."""
    running: int = 0
