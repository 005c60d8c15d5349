"""Repair: damaged rows and pages of a store's file are replaced from a donor that has them unharmed.

Every replacement is proven, never guessed. The file still has the checksum of the damaged content:

    a row     the CRC32C beside it, over key and value; the donor's row of the same key must have it
    a page    the checksum in its last 8 bytes, if the file has page checksums; the donor's page with the
              same number must have it

A donor with an older version of a row, or with another row at the key, has another checksum. Such
a row is left unchanged and reported. A row that SQLite cannot reach, in a file without page checksums,
has no checksum to compare: only a restore helps.

The repair works on a copy of the file, and the doctor examines the copy. Then the copy gets the name of the
store, and the damaged file is kept under another name. No program may have the store open meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec
from msgspec import Struct

from millstream.backup.source import store_id
from millstream.doctor import examine
from millstream.doctor.donor import Donor
from millstream.doctor.examined import Progress
from millstream.doctor.rows import connect_to_examine, damaged_pages
from millstream.engine.checksum import row_checksum
from millstream.engine.disk import full, sync_folder
from millstream.engine.sqlite.checks import layer_for
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import PAGE_BYTES
from millstream.engine.sqlite.neighbour import is_open_here
from millstream.engine.sqlite.pages import RESERVED_BYTES, fits
from millstream.engine.sqlite.replace import replace_file
from millstream.engine.sqlite.rows import NUMBERED, TABLES, SqliteSnapshot
from millstream.engine.sqlite.schema import RECORD
from millstream.engine.sqlite.scrub import CHECKED_COLUMNS, COLUMN_TYPES, problem_of
from millstream.engine.sqlite.unfinished_file import has_log, partial_file
from millstream.errors import CannotOpen, CorruptionError, MillstreamError
from millstream.format import keys
from millstream.format.described import describe

SUFFIX = ".repairing"
"""Suffix of the name of the copy."""

_KINDS = {table: kind for kind, table in NUMBERED.items()}
_KEYS = {
    keys.PAYLOAD: keys.payload,
    keys.PAYLOAD_BLOCK: keys.payload_block,
    keys.DELTA: keys.delta,
}


class RepairReport(Struct, kw_only=True):
    """What a repair has done, or would do."""

    path: str
    donor: str
    applied: bool = False
    """Whether the store was changed."""
    replaced: list[str] = []
    """What was replaced, or would be."""
    remaining: list[str] = []
    """Damage that the donor cannot repair, and why."""
    healthy: bool | None = None
    """Whether the repaired store is healthy; None if that is not known before the repair."""
    aside: str | None = None
    """The new name of the damaged file."""


class DamagedRow(NamedTuple):
    """A row whose checksum does not fit."""

    table: str
    rowid: int
    key: bytes
    bytes: int
    crc: int | None
    """The checksum beside the row; None for a checksum column without a number."""


def plan_repair(path: Path, donor: Donor) -> RepairReport:
    """Return what a repair would do; nothing is changed, and others may use the store."""
    report = RepairReport(path=str(path), donor=donor.text)
    connection, problem = connect_to_examine(path)
    with closing(connection):
        if problem:
            report.remaining.append(problem)
        if connection.pragma("checksum_verification") is not None:
            _plan_pages(damaged_pages(path), path, donor, report)
            connection.execute("PRAGMA checksum_verification = OFF")
        connection.execute("BEGIN")
        _check_store(connection, donor, path)
        _plan_rows(connection, donor, report)
    return report


def apply_repair(path: Path, donor: Donor, *, progress: Progress | None = None) -> RepairReport:
    """Repair a store that no program has open, and keep the damaged file under another name.

    The file is replaced only if the donor could repair a part of it.
    """
    shown, target = path, Path(os.path.realpath(path))
    tell = progress or (lambda _stage, _done, _total: None)
    report = RepairReport(path=str(path), donor=donor.text)
    stamp = _settled(target, shown)
    with partial_file(target, SUFFIX, shown=shown, work="repair") as partial:
        tell("copying", 0, 0)
        _copy(target, partial)
        tell("repairing", 0, 0)
        _repair_copy(partial, donor, report)
        if not report.replaced:
            return report
        tell("examining", 0, 0)
        report.healthy = examine(partial, progress=progress).healthy

        def check_unchanged() -> None:
            if _stamp(target) != stamp:
                raise _in_use(shown)

        report.aside = str(replace_file(partial, target, shown=shown, check=check_unchanged))
        sync_folder(target)
    report.applied = True
    return report


def _repair_copy(partial: Path, donor: Donor, report: RepairReport) -> None:
    layer = layer_for(partial)
    if layer is not None:
        for number, page in _plan_pages(damaged_pages(partial), partial, donor, report).items():
            _write_page(partial, number, page)
    connection = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE, vfs=layer)
    with closing(connection):
        if layer is not None:
            connection.execute("PRAGMA checksum_verification = OFF")
        connection.execute("BEGIN IMMEDIATE")
        _check_store(connection, donor, Path(report.path))
        _write_rows(connection, _plan_rows(connection, donor, report), Path(report.path))
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_rows(
    connection: apsw.Connection, patches: list[tuple[DamagedRow, bytes]], shown: Path
) -> None:
    """Write the values of damaged rows, and end the transaction.

    Without a value nothing is committed: in a file with a damaged structure SQLite refuses that too.
    """
    if not patches:
        connection.execute("ROLLBACK")
        return
    try:
        for row, value in patches:
            connection.execute(
                f"UPDATE {row.table} SET value = ? WHERE rowid = ?", (value, row.rowid)
            )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.CorruptError as error:
        raise CorruptionError(
            f"{shown}: SQLite cannot write to a copy of the file ({error}), and nothing was changed: "
            "restore the store",
            what="file",
            where=str(shown),
        ) from error


def _check_store(connection: apsw.Connection, donor: Donor, shown: Path) -> None:
    """Refuse the donor of another store."""
    try:
        store = store_id(SqliteSnapshot(connection))
    except (MillstreamError, msgspec.MsgspecError):
        return  # the id is damaged; the checksum of each row decides
    if store != donor.store:
        raise CannotOpen(
            f"{donor.text} is another store ({donor.store}) than {shown} ({store}), and its rows have "
            "other keys: name a backup or a copy of this store; records of a log that `millstream "
            "sync` has copied are read from the other store",
            path=donor.text,
        )


# ---- rows


def _plan_rows(
    connection: apsw.Connection, donor: Donor, report: RepairReport
) -> list[tuple[DamagedRow, bytes]]:
    """Return the damaged rows that the donor has, with their values."""
    patches = []
    for row in _damaged_rows(connection, report):
        name = describe(row.key)
        try:
            value = _proven(row, donor)
        except CorruptionError as error:
            report.remaining.append(f"{name}: {error.message}")
            continue
        patches.append((row, value))
        report.replaced.append(f"{name} ({len(value):,} bytes, checksum {row.crc:08x})")
    return patches


def _proven(row: DamagedRow, donor: Donor) -> bytes:
    """Return the donor's value of a row, if it has the checksum of the damaged row."""
    if row.crc is None:
        raise _unproven(row, "its checksum is damaged too, so that no other copy can be compared")
    value = donor.get(row.key)
    if value is None:
        raise _unproven(row, f"{donor.text} does not have it")
    if row_checksum(row.key, value) != row.crc or len(value) != row.bytes:
        raise _unproven(row, f"{donor.text} has another version of it")
    return value


def _unproven(row: DamagedRow, why: str) -> CorruptionError:
    return CorruptionError(why, what="row", where=row.key.hex())


def _damaged_rows(connection: apsw.Connection, report: RepairReport) -> Iterator[DamagedRow]:
    """Yield rows with a wrong checksum; a table that cannot be read goes to the report."""
    for table in TABLES:
        column = "CAST(key AS BLOB)" if table == RECORD else "id"
        try:
            for rowid, place, value, crc, types in connection.execute(
                f"SELECT rowid, {column}, {CHECKED_COLUMNS} FROM {table} NOT INDEXED ORDER BY rowid"
            ):
                key = place if table == RECORD else _KEYS[_KINDS[table]](place)
                if problem_of(key or b"", value, crc, types):
                    known = crc if types == COLUMN_TYPES else None
                    yield DamagedRow(table, rowid, key or b"", len(value or b""), known)
        except (apsw.Error, OverflowError) as error:
            report.remaining.append(
                f"table {table} cannot be read to its end ({error}): restore the store"
            )


# ---- pages


def _plan_pages(
    numbers: Iterator[int], path: Path, donor: Donor, report: RepairReport
) -> dict[int, bytes]:
    """Return the damaged pages that the donor has, by number."""
    pages = {}
    for number in numbers:
        page = donor.page(number)
        if page is None or not fits(page):
            report.remaining.append(f"page {number:,}: {donor.text} does not have it")
        elif page[-RESERVED_BYTES:] != _read_page(path, number)[-RESERVED_BYTES:]:
            report.remaining.append(f"page {number:,}: {donor.text} has another version of it")
        else:
            pages[number] = page
            sums = page[-RESERVED_BYTES:].hex()
            report.replaced.append(f"page {number:,} ({len(page):,} bytes, checksum {sums})")
    return pages


def _read_page(path: Path, number: int) -> bytes:
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    file = apsw.VFSFile("unix", str(path), flags)  # a plain descriptor would drop locks on close
    try:
        return file.xRead(PAGE_BYTES, (number - 1) * PAGE_BYTES)
    finally:
        file.xClose()


def _write_page(path: Path, number: int, page: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, page, (number - 1) * PAGE_BYTES)
    finally:
        os.close(descriptor)


# ---- the copy


def _settled(target: Path, shown: Path) -> tuple[int, ...]:
    """Move the write-ahead log into the file, and return the identity and time of the file."""
    if is_open_here(target):
        raise _in_use(shown)
    with suppress(MillstreamError):  # a damaged file keeps its log
        SqliteEngine(target, adopt=False).close()
    if has_log(target):
        raise CannotOpen(
            f"{shown} has a write-ahead log that was not moved into the file: stop all programs that "
            "use the store; if none does, the log or the file's structure is damaged, and only "
            "`millstream restore` helps",
            path=str(shown),
        )
    return _stamp(target)


def _stamp(target: Path) -> tuple[int, ...]:
    status = target.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns, int(has_log(target)))


def _copy(target: Path, partial: Path) -> None:
    try:
        shutil.copyfile(target, partial)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full(target.parent, str(error)) from error
        raise CannotOpen(
            f"{partial} cannot be written: {error.strerror or error}", path=str(partial)
        ) from error


def _in_use(shown: Path) -> CannotOpen:
    return CannotOpen(
        f"{shown} is in use, and was left as it is: stop all programs that use it, and run the "
        "repair again",
        path=str(shown),
        again=True,
    )
