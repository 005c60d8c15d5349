"""The opening of a store's file: what is checked, converted and created before an engine uses the file.

The first engine of a process inspects the file and judges the write-ahead log that a dead process may
have left. Later engines of the same process must not: they would close a descriptor of the file, which
drops all locks of the process on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from millstream.engine.protocol import Durability
from millstream.engine.sqlite.checks import layer_for, settle_file
from millstream.engine.sqlite.convert import convert_file, was_touched
from millstream.engine.sqlite.file import (
    FILE_MODE,
    check_mode,
    create,
    damaged,
    inspect,
)
from millstream.engine.sqlite.identity import size_of
from millstream.engine.sqlite.neighbour import is_open_here
from millstream.engine.sqlite.pages import checksum_layer
from millstream.engine.sqlite.schema import read_schema
from millstream.engine.sqlite.wal import break_beside_writers
from millstream.errors import CannotOpen


class FileOpening:
    """One opening of a file; `prepare` comes first, then the checks on a connection."""

    def __init__(
        self,
        path: Path,
        *,
        vfs: str | None,
        durability: Durability,
        read_only: bool,
    ) -> None:
        self.vfs = vfs
        """The layer through which SQLite reaches the file; without a layer, `prepare` chooses one."""
        self.log_was_left = False
        """True if a dead process left a write-ahead log, once `prepare` has looked."""
        self._path = path
        self._durability: Durability = durability
        self._read_only = read_only

    def prepare(
        self,
        *,
        busy: Callable[[int], bool],
        page_checksums: bool,
        file_mode: int | None,
        adopt: bool | None,
    ) -> None:
        """Inspect the file, and convert or create it; `adopt` is that of `millstream.open`."""
        path = self._path
        is_first = not is_open_here(path)
        if is_first:
            inspect(path, is_adopted=not self._read_only and adopt is not False)
            is_ours_alone = self._read_only or self.vfs or page_checksums
            if not is_ours_alone and was_touched(path):
                convert_file(path)
        if self.vfs is None:
            is_new = page_checksums and not size_of(path)
            self.vfs = checksum_layer() if is_new else layer_for(path)
        self.log_was_left = is_first and size_of(f"{os.path.realpath(path)}-wal") > 0
        if not self._read_only:
            create(
                path,
                busy=busy,
                vfs=self.vfs,
                file_mode=FILE_MODE if file_mode is None else check_mode(file_mode),
                page_checksums=page_checksums,
                adopt=adopt,
            )
        elif not path.exists() or not path.stat().st_size:
            raise CannotOpen(f"there is no store at {path}", path=str(path))

    def check_log(
        self,
        connection: apsw.Connection,
        connect_beside: Callable[[], apsw.Connection],
        *,
        accept_loss: bool,
    ) -> None:
        """Refuse the log of a dead process if damage cuts off acknowledged commits."""
        if not self.log_was_left:
            return
        damage = break_beside_writers(self._path, connection, connect_beside)
        if damage is None:
            return
        torn = self._durability == "relaxed" and damage.may_be_torn
        if not (accept_loss or torn):
            raise damaged(
                self._path, f"{damage}; to go on without them, open it with accept_loss=True"
            )
        if not self._read_only:  # otherwise the next process would find the same damage
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def check_file(self, connection: apsw.Connection) -> bool:
        """Compare the file with its schema and its own row, and update the row.

        Returns whether the keys of records lie in two indexes.
        """
        if is_open_here(self._path):
            return read_schema(connection).is_twofold
        return settle_file(connection, self._path, read_only=self._read_only)
