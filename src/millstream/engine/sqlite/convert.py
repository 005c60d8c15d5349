"""Conversion of a file with page checksums into a file without, so that any SQLite tool may write it.

Files had page checksums by default until 2026-11. A stock SQLite that writes to such a file does not
update them: the checksums no longer fit, although every row is intact. Damage looks the same. The rest
of the file decides: if SQLite's check of the file finds nothing, and the checksum beside each row fits,
another tool has written the pages and no row is lost. Otherwise the file is not changed.

On request the old file is copied first. The file gets its second index and a row that ends page checksums, in one transaction. So a kill leaves
the old file or the new file. The 8 bytes at the end of each page stay: SQLite could remove them only by
copying every table. No other process may have the file open meanwhile: it would still compare
checksums.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NamedTuple

import apsw

from millstream.engine.disk import full, sync_folder
from millstream.engine.sqlite.checks import Heard, check_all, complete, layer_for
from millstream.engine.sqlite.file import damaged, explained, inspect, is_damage
from millstream.engine.sqlite.header import WAL_VERSIONS, page_bytes_of
from millstream.engine.sqlite.pages import RESERVED_BYTES, plain_layer, sums
from millstream.engine.sqlite.schema import read_schema
from millstream.engine.sqlite.wal import break_in_log
from millstream.errors import CannotOpen, CorruptionError, MillstreamError

BUSY_MS = 1_000
"""How long another process may hold a lock before the file counts as in use."""

SOUGHT_BYTES_MAX = 256 * 1024 * 1024
"""Opening does not read the pages of a larger file: reading 256 MiB takes about half a second."""

PIECE_BYTES = 1024 * 1024
"""Bytes that a copy reads at once; a page is smaller."""

PAGE_TRIES = 3
"""How often a page with a wrong checksum is read: another process may be writing the page."""


class Conversion(NamedTuple):
    """The result of a conversion."""

    rows: int
    """Rows whose checksums were compared."""
    had_page_checksums: bool
    was_complete: bool
    """True if the file had two indexes before."""
    bytes_before: int
    bytes_after: int

    @property
    def is_needed(self) -> bool:
        """True if the file was, or would be, changed."""
        return self.had_page_checksums or not self.was_complete


def was_touched(path: Path) -> bool:
    """True if a file has page checksums, and the checksum of a page does not fit.

    The file is read through SQLite: a plain descriptor would drop the locks of this process on close.
    """
    layer = layer_for(path)
    if layer is None or path.stat().st_size > SOUGHT_BYTES_MAX:
        return False
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    try:
        file = apsw.VFSFile(layer, str(path), flags)
    except apsw.Error:
        return False
    try:
        starts = _starts(file)
        return not all(_fits(file, start, starts.step) for start in starts)
    finally:
        file.xClose()


def _starts(file: apsw.VFSFile) -> range:
    """Return the positions of all pages; an empty range if the pages have no checksums, or the header
    cannot be read."""
    try:
        header = file.xRead(100, 0)
    except apsw.Error:
        header = b""
    if len(header) < 100 or header[20] != RESERVED_BYTES:
        return range(0)
    page_bytes = int.from_bytes(header[16:18], "big")
    if page_bytes == 1:  # SQLite stores 65,536 as 1
        page_bytes = 65_536
    if page_bytes < 512:
        return range(0)
    return range(0, file.xFileSize() // page_bytes * page_bytes, page_bytes)


def _fits(file: apsw.VFSFile, start: int, page_bytes: int) -> bool:
    for _ in range(PAGE_TRIES):
        try:
            file.xRead(page_bytes, start)
        except apsw.Error as error:
            if not is_damage(error):
                raise
        else:
            return True
    return False


def plan_conversion(path: Path) -> Conversion:
    """Return what `convert_file` would do, by the schema alone; nothing is changed or checked."""
    inspect(path)
    size = path.stat().st_size
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=plain_layer())
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        schema = read_schema(connection)
        checksums = schema.has_page_checksums(connection)
        return Conversion(0, checksums, schema.row is not None and not schema.is_moved, size, size)
    except CorruptionError as error:
        raise damaged(path, error.message) from error
    except apsw.Error as error:
        raise _failed(error, path) from error
    finally:
        connection.close()


def convert_file(path: Path, heard: Heard | None = None, *, copy: Path | None = None) -> Conversion:
    """Check every row of a file, and end its page checksums; write the old file to `copy` before.

    Raises `CorruptionError` for damage, and `CannotOpen` if another process has the file open; the
    file is not changed then.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    inspect(path)
    bytes_before = path.stat().st_size
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=plain_layer())
    try:
        connection.set_busy_timeout(BUSY_MS)
        # Closing must not checkpoint a WAL that a dead process left: it is checked first.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        schema = read_schema(connection)
        damage = break_in_log(path, connection)
        if damage is not None:
            raise damaged(path, f"{damage}; to go on without them, open it with accept_loss=True")
        had_checksums = schema.has_page_checksums(connection)
        if schema.row is not None and not had_checksums and not schema.is_moved:
            return Conversion(0, False, True, bytes_before, bytes_before)
        rows = check_all(connection, hear)
        _keep_others_out(connection, path)
        hear("converting", 0, 0)
        connection.execute("PRAGMA synchronous = FULL")
        # A reader in rollback mode keeps writers out, and the file has all commits.
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        if copy is not None:
            _keep_copy(connection, copy, hear)
        complete(connection, page_checksums=False)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except CorruptionError as error:
        raise error if str(path) in error.message else damaged(path, error.message) from error
    except apsw.Error as error:
        raise _failed(error, path) from error
    finally:
        connection.close()
    return Conversion(
        rows, had_checksums, schema.row is not None, bytes_before, path.stat().st_size
    )


def _keep_copy(connection: apsw.Connection, copy: Path, hear: Heard) -> None:
    """Write the file of an open transaction to another name, which appears when it is complete."""
    if copy.exists():
        raise CannotOpen(
            f"{copy}, the copy of an earlier conversion, exists: move it away, or remove it, and run it "
            "again; nothing was changed",
            path=str(copy),
        )
    part = Path(f"{copy}.part")
    for ending in ("", "-journal", "-wal", "-shm"):  # an interrupted run may have left them
        Path(f"{part}{ending}").unlink(missing_ok=True)
    try:
        _copy_bytes(Path(connection.filename), part, hear)
        os.rename(part, copy)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise full(copy.parent, f"{copy.name} does not fit") from error
        raise CannotOpen(
            f"{copy} cannot be written: {error.strerror}; nothing was changed", path=str(copy)
        ) from error
    finally:
        part.unlink(missing_ok=True)
    sync_folder(copy)


def _copy_bytes(path: Path, part: Path, hear: Heard) -> None:
    """Copy a file that nobody writes, as it was in write-ahead mode, and sync the copy.

    The file is read through SQLite: a plain descriptor would drop the locks of this process on close.
    """
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    source = apsw.VFSFile(plain_layer(), str(path), flags)
    mode = 0o777 & path.stat().st_mode
    try:
        total, at = source.xFileSize(), 0
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as target:
            while at < total:
                piece = source.xRead(min(PIECE_BYTES, total - at), at)
                target.write(piece if at else _in_wal_mode(piece))
                at += len(piece)
                hear("keeping a copy", at, total)
            target.flush()
            os.fsync(target.fileno())
    finally:
        source.xClose()


def _in_wal_mode(piece: bytes) -> bytes:
    """Return the begin of a file with the header of write-ahead mode, and a checksum that fits."""
    page_bytes = page_bytes_of(piece)
    page = bytearray(piece[:page_bytes])
    page[18:20] = WAL_VERSIONS
    if page[20] == RESERVED_BYTES:
        first, second = sums(bytes(page[:-RESERVED_BYTES]), swap=sys.byteorder == "big")
        page[-RESERVED_BYTES:] = first.to_bytes(4, "little") + second.to_bytes(4, "little")
    return bytes(page) + piece[page_bytes:]


def _keep_others_out(connection: apsw.Connection, path: Path) -> None:
    """Leave write-ahead mode, which SQLite allows only to a single connection."""
    try:
        mode = connection.execute("PRAGMA journal_mode = DELETE").get
    except (apsw.BusyError, apsw.LockedError):
        mode = "wal"
    if mode != "delete":
        raise CannotOpen(
            f"{path} is open elsewhere, and can be converted by the only process that has it open: "
            "close it everywhere, then run it again; nothing was changed",
            path=str(path),
        )


def _failed(error: apsw.Error, path: Path) -> MillstreamError:
    if isinstance(error, apsw.FullError):
        return full(os.path.dirname(os.path.realpath(path)), str(error))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return CannotOpen(f"{path} is busy: {error}; nothing was changed", path=str(path))
    return explained(error, path)
