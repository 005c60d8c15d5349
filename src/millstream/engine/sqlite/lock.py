"""The holder of a SQLite file's write lock, for the error of a writer whose wait timed out.

In write-ahead mode the write lock is byte 120 of the `-shm` file. Linux lists all locks in
`/proc/locks`. `fcntl` would need a descriptor of that file, and closing the descriptor would drop all
locks of this process on the file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import Overloaded

WRITE_LOCK_BYTE = 120
LOCKS = Path("/proc/locks")


class Holder(NamedTuple):
    """A process that holds a write lock."""

    process: int
    name: str
    is_stopped: bool
    """True if the process was stopped, as by SIGSTOP or Ctrl-Z."""


def still_locked(path: Path, waited_ms: int) -> Overloaded:
    """Return the error for a writer that did not get the write lock in time."""
    message = f"{path}: other processes kept the write lock for {waited_ms / 1000:g} s"
    data: dict[str, Any] = {"path": str(path)}
    holder = find_holder(path)
    if holder is not None:
        data["holder"] = holder.process
        message += f"; process {holder.process} ({holder.name}) holds it"
        if holder.is_stopped:
            message += (
                f" and is stopped: let it go on (kill -CONT {holder.process}), or end it; its "
                "transaction is then undone"
            )
    return Overloaded(message, **data)


def find_holder(path: Path) -> Holder | None:
    """Return the process that holds the write lock of a file; None if free or unknown."""
    with suppress(OSError, ValueError, IndexError):
        inode = os.stat(f"{os.path.realpath(path)}-shm").st_ino
        for line in LOCKS.read_text(encoding="ascii", errors="replace").splitlines():
            fields = line.split()
            if fields[1:4] != ["POSIX", "ADVISORY", "WRITE"]:
                continue  # locks that processes wait for begin with an arrow
            process, place, first, last = int(fields[4]), fields[5], fields[6], fields[7]
            if int(place.rpartition(":")[2]) != inode or process <= 0:
                continue
            if int(first) <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE):
                return _described(process)
    return None


def _described(process: int) -> Holder:
    name, state = "unknown", ""
    with suppress(OSError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        name = text.partition("(")[2].rpartition(")")[0]
        state = text.rpartition(")")[2].split()[0]
    return Holder(process, name, state in ("T", "t"))
