"""A slow disk: an engine with a pause after each sync.

Syncs on the machines where this is developed are unusually cheap; real disks take milliseconds.
"""

from __future__ import annotations

import os
from time import sleep

from millstream.store.engine import Engine
from millstream.store.engines import open_engine
from millstream.testing.recording import recorded


def open_slow_engine(path: str | os.PathLike[str], *, sync_delay_s: float) -> Engine:
    """The engine of a file; every commit takes so many seconds longer."""
    engine = open_engine(path)
    return recorded(engine, lambda _: sleep(sync_delay_s)) if sync_delay_s else engine
