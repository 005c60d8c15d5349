"""What can be set of the SQLite engine alone; every other engine has options of its own."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """How one handle uses its file; `millstream.open(path, options=SqliteOptions(...))` says so."""

    busy_timeout_ms: int = 60_000
    """How long a writer waits for other processes before it gives up with `Overloaded`."""

    wal_bytes_checkpoint: int = 16 * MiB
    """Growth of the write-ahead log after which it is copied into the file, in the background."""

    wal_bytes_left: int = 2 * MiB
    """What may be left after copying for the log to be started anew, under the write lock."""

    wal_bytes_reset: int = 64 * MiB
    """Size at which the write-ahead log is started anew even if much is left."""
