"""A slow disk: the SQLite engine with a pause after each sync.

Syncs on the machines where this is developed are unusually cheap; real disks take milliseconds.
"""

from __future__ import annotations

import os
from time import sleep
from typing import Any

from millstream.store.sqlite import SqliteEngine


class SlowSyncEngine(SqliteEngine):
    """Every commit takes so many seconds longer."""

    def __init__(
        self, path: str | os.PathLike[str], *, sync_delay_s: float, **options: Any
    ) -> None:
        self._sync_delay_s = sync_delay_s
        super().__init__(path, **options)

    def _committed(self) -> None:
        super()._committed()
        if self._sync_delay_s:
            sleep(self._sync_delay_s)
