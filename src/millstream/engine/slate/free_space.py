"""Room on the disk of a store in a folder (`file:///`), asked before anything is sent to SlateDB.

SlateDB repeats what finds the disk full, and does not say why it waits. So the disk is asked first: a
commit that has no room is refused before anything of it is written, and the handle stays usable.
A bucket has no end, and no object of this.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream.clock import Clock
from millstream.engine.disk import SHARE, DiskSpace, FileSpace
from millstream.engine.protocol import Shortage
from millstream.errors import DiskFull
from millstream.limits import Limits
from millstream.objects.address import ObjectAddress


class FolderRoom:
    """The free room of the disk under one store."""

    def __init__(self, folder: Path, limits: Limits, clock: Clock) -> None:
        self._folder, self._reserve_bytes = folder, limits.disk_free_bytes_min
        self._space = DiskSpace(str(folder), limits, clock, file=lambda: FileSpace(0, 0))

    def shortage(self) -> Shortage | None:
        """What is missing of the reserve; None if nothing is."""
        return self._space.shortage(0)

    def check(self, size_bytes: int) -> None:
        """Refuse with `DiskFull` what would take the part of the reserve that nothing may take."""
        try:
            disk = shutil.disk_usage(self._folder)
        except OSError:
            return  # the commit itself will tell
        kept_bytes = min(self._reserve_bytes, disk.total // SHARE) // 4
        if disk.free - size_bytes < kept_bytes:
            raise DiskFull(
                f"the disk of {self._folder} is full: {size_bytes:,} bytes were to be written, "
                f"{disk.free:,} are free, and {kept_bytes:,} of them are kept in reserve; nothing "
                "was stored, and reads go on. Make room on the disk: writing then works again "
                "without a restart",
                path=str(self._folder),
                free_bytes=disk.free,
                reserve_bytes=kept_bytes,
            )


def room_of(address: ObjectAddress, limits: Limits, clock: Clock) -> FolderRoom | None:
    """The room of a store in a folder; None for one on an object store, which has no end."""
    if address.scheme != "file":
        return None
    return FolderRoom(Path(f"/{address.prefix}"), limits, clock)
