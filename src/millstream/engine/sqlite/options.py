"""What can be set of the SQLite engine alone; every other engine has options of its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace

from millstream.limits import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """How one handle uses its file; `millstream.open(path, options=SqliteOptions(...))` says so."""

    busy_timeout_ms: int = 60_000
    """How long a writer waits for other processes before it gives up with `Overloaded`."""

    wal_bytes_checkpoint: int = 16 * MiB
    """Growth of the write-ahead log after which it is copied into the file, in the background.

    This and the next two are less on a disk below 256 MiB: a sixteenth of it, a 128th, a quarter.
    """

    wal_bytes_left: int = 2 * MiB
    """What may be left after copying for the log to be started anew, under the write lock."""

    wal_bytes_reset: int = 64 * MiB
    """Size at which the write-ahead log is started anew even if much is left."""

    page_checksums: bool = False
    """Whether a new file gets a checksum in each page; one that is there stays as it was made.

    For stores that Millstream alone opens: any other SQLite tool that writes to the file spoils them.
    """

    scrub_share: float = 0.01
    """The share of time for which the background reads all rows again, to find damage; 0 turns it off."""


def fitted(options: SqliteOptions, folder: str | os.PathLike[str]) -> SqliteOptions:
    """The same for the disk of a folder: on a small one the write-ahead log leaves the file its room."""
    try:
        disk_bytes = shutil.disk_usage(folder).total
    except OSError:
        return options  # opening the file will tell
    return replace(
        options,
        wal_bytes_checkpoint=min(options.wal_bytes_checkpoint, disk_bytes // 16),
        wal_bytes_left=min(options.wal_bytes_left, disk_bytes // 128),
        wal_bytes_reset=min(options.wal_bytes_reset, disk_bytes // 4),
    )
