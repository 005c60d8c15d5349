"""What can be set of the SlateDB engine alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.limits import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateOptions:
    """How one handle uses its bucket; `millstream.open("s3://…", options=SlateOptions(...))` says so."""

    commit_timeout_s: float = 30.0
    """How long a commit waits for the object store before its outcome is called unknown."""

    pace_s: float = 0.3
    """How long a commit waits for callers that come one by one, so that many share one request.

    A caller alone does not wait for it, nor do 40 and more at once. With 0, none waits.
    """

    follow_s: float = 1.0
    """How old what a read-only handle shows may be, before it looks for newer commits."""

    cache_folder: str | Path | None = None
    """A folder on a local disk for parts of objects that were read; None keeps none."""

    cache_bytes_max: int = 4096 * MiB
    """How much that folder may hold."""

    memory_cache_bytes: int = 256 * MiB
    """How many bytes of blocks that were read stay in memory."""
