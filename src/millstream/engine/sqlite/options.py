"""Options of the SQLite engine."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace

from millstream.limits import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """Options of one handle: `millstream.open(path, options=SqliteOptions(...))`."""

    busy_timeout_ms: int = 60_000
    """Timeout of a writer that waits for other processes; afterwards it raises `Overloaded`."""

    wal_bytes_checkpoint: int = 16 * MiB
    """Growth of the write-ahead log after which a background checkpoint copies it into the file.

    On a disk below 256 MiB this option and the next two are at most a sixteenth, a 128th and a quarter
    of the disk.
    """

    wal_bytes_left: int = 2 * MiB
    """Uncopied bytes up to which a checkpoint restarts the write-ahead log, under the write lock."""

    wal_bytes_reset: int = 64 * MiB
    """Size at which a checkpoint restarts the write-ahead log, even with many uncopied bytes."""

    page_checksums: bool = False
    """True gives each page of a new file a checksum; an existing file is not changed.

    Only for stores that no other SQLite tool writes to: such a tool does not update the checksums.
    """

    scrub_share: float = 0.01
    """The share of time in which the background scrubs all rows for damage; 0 turns it off."""

    compact_share: float = 0.05
    """The share of time in which the background returns free pages to the disk; 0 turns it off."""

    free_bytes_kept: int = 64 * MiB
    """Free bytes that the background leaves in the file, for later records.

    The background begins when twice as many bytes, and a quarter of the file, are free.
    """


def fitted(options: SqliteOptions, folder: str | os.PathLike[str]) -> SqliteOptions:
    """Lower the options for a small disk, so that the write-ahead log leaves space for the file."""
    try:
        disk_bytes = shutil.disk_usage(folder).total
    except OSError:
        return options  # opening the file will fail
    return replace(
        options,
        wal_bytes_checkpoint=min(options.wal_bytes_checkpoint, disk_bytes // 16),
        wal_bytes_left=min(options.wal_bytes_left, disk_bytes // 128),
        wal_bytes_reset=min(options.wal_bytes_reset, disk_bytes // 4),
    )
