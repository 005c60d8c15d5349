"""The holder of an instance: the identity of a process, and whether the process is alive.

    boot / process namespace / process id / start of the process / a random number

A process of the same boot and the same namespace can be looked up at once. Nothing is known about
other processes: only their leases tell.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millstream.clock import Clock

HIDDEN = "?"
"""The start of a process that exists, but hides its start."""

STARTED_FIELD = 19
"""The index in `/proc/PID/stat`, counted behind the name: the start of the process."""


def make_holder(clock: Clock) -> str:
    """Return a new unique text for a holder in this process."""
    process = os.getpid()
    return f"{clock.boot_id()}/{_namespace()}/{process}/{_started(process)}/{secrets.token_hex(4)}"


def is_dead(holder: str, clock: Clock) -> bool:
    """Whether the process of a holder has certainly ended."""
    fields = holder.split("/")
    if len(fields) != 5 or fields[:2] != [clock.boot_id(), _namespace()] or not fields[2].isdigit():
        return False
    return _started(int(fields[2])) not in (fields[3], HIDDEN)


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _started(process: int) -> str:
    """Return the start of a process as text; empty without such a process, `HIDDEN` if unreadable."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[STARTED_FIELD]
    except (OSError, IndexError):
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return HIDDEN
