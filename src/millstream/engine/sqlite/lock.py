"""The holder of a SQLite file's write lock, for the error of a writer whose wait timed out.

In write-ahead mode the write lock is byte 120 of the `-shm` file. Linux lists all locks in
`/proc/locks`, and the locks of open files in `/proc/PID/fdinfo`. `fcntl` would need a descriptor of
that file, and closing the descriptor would drop all POSIX locks of this process on the file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import Overloaded

WRITE_LOCK_BYTE = 120
LOCKS = Path("/proc/locks")
PROCESSES = Path("/proc")


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
            if fields[2:4] != ["ADVISORY", "WRITE"]:
                continue  # locks that processes wait for begin with an arrow
            if not _is_write_lock(fields[5:8], inode):
                continue
            process = int(fields[4]) if fields[1] == "POSIX" else _owner(inode)
            if process is not None and process > 0:
                return _described(process)
    return None


def _is_write_lock(place: list[str], inode: int) -> bool:
    """Return whether the place of a lock is the write lock: device and inode, first and last byte."""
    first, last = int(place[1]), place[2]
    if int(place[0].rpartition(":")[2]) != inode:
        return False
    return first <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE)


def _owner(inode: int) -> int | None:
    """Return the process with the lock of an open file (`neighbour.py`), which names no process."""
    for process in PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # a process of another user, or one that has ended
            for descriptor in (process / "fdinfo").iterdir():
                for line in descriptor.read_text(encoding="ascii", errors="replace").splitlines():
                    fields = line.split()
                    is_held = fields[:1] == ["lock:"] and fields[2:5] == [
                        "OFDLCK",
                        "ADVISORY",
                        "WRITE",
                    ]
                    if is_held and _is_write_lock(fields[6:9], inode):
                        return int(process.name)
    return None


def _described(process: int) -> Holder:
    name, state = "unknown", ""
    with suppress(OSError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        name = text.partition("(")[2].rpartition(")")[0]
        state = text.rpartition(")")[2].split()[0]
    return Holder(process, name, state in ("T", "t"))
