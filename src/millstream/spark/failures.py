"""Named points at which a test stops a process for good, to see what is left when it is killed.

`MILLSTREAM_SPARK_STOP=POINT:FILE` makes the first process that comes to that point write its
process id into the file, and wait to be killed. Without the variable nothing happens.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

VARIABLE = "MILLSTREAM_SPARK_STOP"
POINTS = ("planning", "write", "before commit", "after commit")
PATIENCE_S = 120.0


def point(name: str) -> None:
    """Wait here to be killed, if a test asks for it."""
    setting = os.environ.get(VARIABLE)
    if not setting:
        return
    chosen, _, path = setting.partition(":")
    if chosen != name:
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    threading.Event().wait(PATIENCE_S)
    raise RuntimeError(f"nobody came to kill this process at {name!r}")
