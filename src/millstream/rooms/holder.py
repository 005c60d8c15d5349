"""The holder of an instance: which process it is, and whether that one is still alive.

    boot / process namespace / process id / start of the process / a number of its own

A process of the same boot and the same namespace can be looked for at once. Of any other nothing is
known here: its lease tells.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millstream.clock import Clock

HIDDEN = "?"
"""When a process was started that exists, and of which nothing else can be read."""

STARTED_FIELD = 19
"""Of `/proc/PID/stat`, counted behind the name: when the process was started."""


def make_holder(clock: Clock) -> str:
    """A text for one holder in this process; another call gives another one."""
    own = os.getpid()
    return f"{clock.boot_id()}/{_namespace()}/{own}/{_started(own)}/{secrets.token_hex(4)}"


def is_dead(holder: str, clock: Clock) -> bool:
    """Whether the process of a holder is known to have ended."""
    parts = holder.split("/")
    if len(parts) != 5 or parts[:2] != [clock.boot_id(), _namespace()] or not parts[2].isdigit():
        return False
    return _started(int(parts[2])) not in (parts[3], HIDDEN)


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _started(process: int) -> str:
    """When a process was started, as a text; empty if there is none, `HIDDEN` if it is hidden."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return told.rpartition(")")[2].split()[STARTED_FIELD]
    except (OSError, IndexError):
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return HIDDEN
