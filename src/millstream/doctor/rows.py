"""The rows of a store's file, read without trusting any of them, and without writing one.

The file is opened read-only and looked at in one snapshot, so others may go on writing. A damaged
row is handed out with what is wrong with it, and the walk goes on. Where SQLite itself cannot go
on, the walk continues behind the damaged pages, as far as they can be passed from the other side.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import apsw

from millstream.doctor.examined import Found, Progress
from millstream.doctor.findings import Findings
from millstream.engine.sqlite.checks import check_trees, wants_layer
from millstream.engine.sqlite.file import (
    FIRST_BYTES,
    PAGE_BYTES,
    cut,
    is_damage,
    is_half_made,
    refusal,
)
from millstream.engine.sqlite.neighbour import is_open_here
from millstream.engine.sqlite.pages import checksum_layer, fits, is_verified, plain_layer
from millstream.engine.sqlite.rows import NUMBERED, TABLES, SqliteSnapshot
from millstream.engine.sqlite.schema import PREFIX, RECORD, read_schema
from millstream.engine.sqlite.scrub import CHECKED_COLUMNS, problem_of
from millstream.engine.sqlite.wal import Break, break_in_log, find_break
from millstream.errors import CannotOpen, CorruptionError
from millstream.format import keys
from millstream.format.described import describe
from millstream.format.version import FORMAT

BUSY_MS = 10_000
STEPS_PER_TICK = 200_000
"""Instructions of SQLite between two signs of life during its own check."""

PAGE_TRIES = 3
"""How often a page is read whose checksum does not fit: it may be written just now."""

_NOT_IN_INDEX = re.compile(rf"row (\d+) missing from index sqlite_autoindex_{RECORD}_1")
_WRONG_COUNT = re.compile(rf"wrong # of entries in index sqlite_autoindex_{RECORD}_1")
_TREE = re.compile(r"[Tt]ree (\d+) page \d+")
_UNUSED_PAGE = re.compile(r"Page (\d+): never used")

Place = bytes | int
"""The key or the number of a row in its table."""


class FileRows(SqliteSnapshot):
    """A snapshot of a file; close the snapshot when done."""

    backend = "SQLite"

    def __init__(self, path: Path, findings: Findings, progress: Progress) -> None:
        self._connection, problem = connect_to_examine(path)
        if problem:
            findings.add("file", problem)
            findings.report.complete = False
        # Without `is_twofold`: `integrity` compares both indexes of the records with their table.
        super().__init__(self._connection)
        self._path = path
        self._findings = findings
        self._progress = progress
        self._stage = ""
        self._total = self._done = 0
        try:
            self.page_checksums = is_verified(self._connection)
            self._connection.execute("BEGIN")
            self.format = self._find_format()
        except apsw.Error as error:
            self._connection.close()
            raise _lost(path, error) from error

    def close(self) -> None:
        """Let go of the file, as it was."""
        self._connection.close()

    def enter(self, stage: str) -> None:
        """Say what is looked at from now on."""
        self._stage = stage
        self._progress(stage, self._done, self._total)

    def break_in_log(self) -> Break | None:
        """Return the damage of the write-ahead log that makes SQLite ignore later commits."""
        try:
            return break_in_log(self._path, self._connection)
        except (
            apsw.Error
        ):  # SQLite does not say how many frames are valid, so all frames are checked
            return find_break(Path(f"{self._path}-wal"))

    def integrity(self) -> list[str]:
        """Run SQLite's own check, application tables included, and yield its findings.

        A page with a wrong checksum ends that check. The doctor then repeats the check without page
        checksums, and reads the rest of the file without them, to find readable rows.
        """
        problems = self._integrity()
        if not self.page_checksums or not problems:
            return problems
        pages = list(damaged_pages(self._path))
        if pages:
            self._findings.report.complete = False
            self._connection.execute("PRAGMA checksum_verification = OFF")
            problems = [
                *(f"the checksum of page {number:,} does not fit" for number in pages),
                *self._integrity(),
            ]
        return problems

    def _integrity(self) -> list[str]:
        self._connection.set_progress_handler(self._tick, STEPS_PER_TICK)
        try:
            problems, unchecked = check_trees(self._connection)
        except (apsw.Error, UnicodeDecodeError) as error:  # names may be damaged as well
            problems, unchecked = [str(error)], {}
        finally:
            self._connection.set_progress_handler(None)
        if unchecked:
            tables = ", ".join(f"{table} ({reason})" for table, reason in unchecked.items())
            self._findings.report.sqlite = f"ok, but SQLite cannot check tables: {tables}"
        return [self._in_words(line) for line in problems]

    def _in_words(self, line: str) -> str:
        """What SQLite says, and what it means for the rows of a store."""
        if match := _NOT_IN_INDEX.search(line):
            return f"{line}: {self._record(int(match[1]))} cannot be found by its key"
        if match := _TREE.search(line):
            return f"{line}: rows of {self._tree(int(match[1]))} may be lost"
        if match := _UNUSED_PAGE.search(line):
            return f"{line}: page {int(match[1]):,} belongs to no table; rows in it are not found"
        if _WRONG_COUNT.search(line):
            return f"{line}: rows and their index do not agree"
        return line

    def _record(self, row: int) -> str:
        try:
            query = f"SELECT CAST(key AS BLOB) FROM {RECORD} NOT INDEXED WHERE rowid = ?"
            record = self._execute(query, (row,)).fetchone()
        except apsw.Error:
            record = None
        return f"row {row:,}" if record is None or record[0] is None else describe(record[0])

    def _tree(self, root_page: int) -> str:
        """The table or index whose pages hang below a root page."""
        try:
            query = "SELECT type || ' ' || name FROM sqlite_schema WHERE rootpage = ?"
            table = self._execute(query, (root_page,)).fetchone()
        except (apsw.Error, UnicodeDecodeError):
            table = None
        return "an unknown table" if table is None else str(table[0])

    def count(self) -> dict[str, int]:
        """The rows in each table, by its short name; what cannot be counted is left out."""
        counts = {}
        for table in TABLES:
            try:
                counts[table.removeprefix(PREFIX)] = self._sum(f"SELECT count(*) FROM {table}")
            except apsw.Error:
                continue  # the walk reports the break
        self._total = sum(counts.values())
        return counts

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; a damaged or unreachable one raises `CorruptionError`."""
        table = NUMBERED.get(key[1])
        where, value = ("key", key) if table is None else ("id", keys.number(key))
        try:
            row = self._execute(
                f"SELECT {CHECKED_COLUMNS} FROM {table or RECORD} WHERE {where} = ?",
                (value,),
            ).fetchone()
        except apsw.Error as error:
            raise CorruptionError(f"it cannot be read: {error}", what="row", where=key) from error
        if row is None:
            return None
        checked = self._checked(key, *row)
        if checked.problem:
            raise CorruptionError(checked.problem, what="row", where=key)
        return checked.value

    def payload(self, key: bytes) -> bytes | None:
        """As `get`, and counted as checked."""
        value = self.get(key)
        if value is not None:
            self._count(NUMBERED[key[1]], len(value))
        return value

    def walk(self, start: bytes, stop: bytes) -> Iterator[Found]:
        """Every row of the records with start <= key < stop, in order."""
        yield from self._walk(RECORD, start, stop)

    def walk_deltas(self) -> Iterator[Found]:
        """Every delta, in order."""
        yield from self._walk(NUMBERED[keys.DELTA], -(2**63), 2**63 - 1)

    def numbers(self, kind: int) -> Iterator[tuple[int, int]]:
        """The number and size of every payload or payload block; values are not looked at."""
        table = NUMBERED[kind]
        try:
            for number, size in self._execute(f"SELECT id, length(value) FROM {table} ORDER BY id"):
                if isinstance(number, int):
                    yield number, int(size or 0)
                else:
                    self._findings.add("file", f"table {table} has a row without a number")
        except apsw.Error as error:
            self._findings.report.complete = False
            self._findings.add("file", f"table {table} cannot be listed to its end: {error}")

    def _walk(self, table: str, start: Place, stop: Place) -> Iterator[Found]:
        last: Place | None = None
        try:
            for place, row in self._rows(table, start, stop):
                last = place
                yield row
            return
        except apsw.Error as error:
            reason = str(error)
        behind = self._behind(table, start if last is None else last, stop)
        where = "its beginning" if last is None else f"row {_name(last)}"
        until = "its end" if behind is None else f"row {_name(behind)}"
        self._findings.report.complete = False
        self._findings.add(
            "file", f"table {table} cannot be read from {where} to {until}: {reason}"
        )
        if behind is not None:
            try:
                for _, row in self._rows(table, behind, stop):
                    yield row
            except apsw.Error as error:
                self._findings.add("file", f"table {table} is damaged again behind it: {error}")

    def _rows(self, table: str, start: Place, stop: Place) -> Iterator[tuple[Place, Found]]:
        column, place = _column(table)
        selected = self._execute(
            f"SELECT {place}, {CHECKED_COLUMNS} FROM {table} "
            f"WHERE {column} >= ? AND {column} < ? ORDER BY {column}",
            (start, stop),
        )
        for place, *row in selected:
            key = place if isinstance(place, bytes) else _numbered_key(place)
            self._count(table, len(row[0] or b""))
            yield place, self._checked(key, *row)

    def _behind(self, table: str, after: Place, stop: Place) -> Place | None:
        """The first row that can still be reached, coming from the end."""
        column, selected = _column(table)
        last: Place | None = None
        try:
            for (place,) in self._execute(
                f"SELECT {selected} FROM {table} WHERE {column} > ? AND {column} < ? "
                f"ORDER BY {column} DESC",
                (after, stop),
            ):
                last = place
        except apsw.Error:
            pass  # as far as it goes
        return last

    def _checked(self, key: bytes, value: bytes | None, crc: int | None, types: str) -> Found:
        return Found(key, value or b"", problem_of(key, value, crc, types))

    def _count(self, table: str, size: int) -> None:
        report = self._findings.report
        name = table.removeprefix(PREFIX)
        report.rows[name] = report.rows.get(name, 0) + 1
        report.bytes += size
        self._done += 1
        if self._done % 256 == 0:
            self._progress(self._stage, self._done, self._total)

    def _tick(self) -> bool:
        self._progress(self._stage, self._done, self._total)
        return False

    def _sum(self, query: str) -> int:
        return sum(int(row[0]) for row in self._execute(query))

    def _find_format(self) -> int:
        """The format that the file says; what is wrong with its schema is a finding."""
        names = self._execute("SELECT CAST(name AS BLOB) FROM sqlite_schema")
        # The encoding may be UTF-16, and in a damaged file a name may be missing.
        present = {row[0].replace(b"\0", b"") for row in names if row[0] is not None}
        for table in TABLES:
            if table.encode() not in present:
                raise apsw.CorruptError(f"table {table} is missing")
        try:
            row = read_schema(self._connection).row
        except (CorruptionError, UnicodeDecodeError) as error:
            self._findings.add("file", f"its schema is not what was written: {error}")
            return FORMAT
        return FORMAT if row is None else row.format


def connect_to_examine(path: Path) -> tuple[apsw.Connection, str]:
    """Return a connection that only reads, and why SQLite refuses an ordinary one."""
    missing = _inspect(path)
    for attempt in _ways(path):
        try:
            return _connect(attempt), missing
        except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
            reason = error
        except apsw.Error as error:
            if not is_damage(error):
                raise CannotOpen(f"{path}: {error}", path=str(path)) from error
            return _connect_anyway(path, attempt), missing or f"SQLite would not open it: {error}"
    raise CannotOpen(
        f"{path}: {reason}; if {path.parent} is not writable, copy the store with its -wal file "
        "elsewhere and examine the copy",
        path=str(path),
    ) from reason


def _inspect(path: Path) -> str:
    """Refuse a file without the first page of a store; return the bytes missing at its end.

    A read-only file is allowed.
    """
    if is_open_here(path):
        return ""
    try:
        with path.open("rb") as file:
            page = file.read(FIRST_BYTES)
    except FileNotFoundError:
        raise CannotOpen(f"{path} does not exist", path=str(path)) from None
    except OSError as error:
        raise CannotOpen(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    if not page:
        raise CannotOpen(f"{path} is empty: no store was made in it", path=str(path))
    problem = refusal(path, page)
    if problem is not None:
        raise problem
    if is_half_made(path):
        raise CannotOpen(
            f"{path} has a rollback journal beside it: the store was being created, or another SQLite "
            "tool was writing, when its process ended; open the store once, which undoes that",
            path=str(path),
        )
    return cut(path, page) or ""


def _ways(path: Path) -> Iterator[str]:
    """How the file can be opened so that it stays as it is, the best way first."""
    address = path.absolute().as_uri()
    wal = Path(f"{path}-wal")
    if not os.access(path, os.W_OK):
        yield _way_of_others(path, address, wal)
        return
    if not wal.exists() or wal.stat().st_size == 0:
        yield f"{address}?mode=rw"  # a reader could not remove the -wal and -shm that it makes
    yield f"{address}?mode=ro"
    if not wal.exists() or wal.stat().st_size == 0:
        yield f"{address}?mode=ro&immutable=1"


def _way_of_others(path: Path, address: str, wal: Path) -> str:
    """For a file that this user may not write: files made beside it would keep its owner out."""
    is_open = Path(f"{path}-shm").exists()
    if not wal.exists() or (wal.stat().st_size == 0 and not is_open):
        return f"{address}?mode=ro&immutable=1"
    if is_open:
        return f"{address}?mode=ro"
    raise CannotOpen(
        f"{path} may not be written by this user, and a write-ahead log was left beside it: to read "
        "both would leave a file that keeps the owner from writing; examine it as its owner, or "
        "copy the store with its -wal file elsewhere and examine the copy",
        path=str(path),
    )


def _connect_anyway(path: Path, address: str) -> apsw.Connection:
    try:
        return _connect(address, lenient=True)
    except apsw.Error as error:
        raise _lost(path, error) from error


def _lost(path: Path, error: apsw.Error) -> CannotOpen | CorruptionError:
    """What is said of a file in which SQLite does not find our tables."""
    if not is_damage(error):
        return CannotOpen(f"{path}: {error}", path=str(path))
    return CorruptionError(
        f"{path} is damaged: SQLite does not find the tables in it ({error}), so that nothing can "
        "be read; put back a copy of the file",
        what="file",
        where=str(path),
    )


def _connect(address: str, *, lenient: bool = False) -> apsw.Connection:
    """A connection that only reads; through the checksum layer if pages have checksums that count."""
    connection = _connect_by(plain_layer(), address, lenient=lenient)
    if checksum_layer() is None or not wants_layer(connection):
        return connection
    connection.close()
    return _connect_by(checksum_layer(), address, lenient=lenient)


def _connect_by(vfs: str | None, address: str, *, lenient: bool) -> apsw.Connection:
    writable = address.endswith("=rw")
    mode = apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(address, flags=mode | apsw.SQLITE_OPEN_URI, vfs=vfs)
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.execute("PRAGMA query_only = 1")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if writable else 1)
        if lenient:
            connection.execute("PRAGMA writable_schema = 1")  # also reads files that were cut
            connection.execute("PRAGMA checksum_verification = OFF")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def damaged_pages(path: Path) -> Iterator[int]:
    """Return the numbers of damaged pages, counted from 1, unused pages included.

    SQLite's own check stops at the first damaged page. SQLite reads the file here, because closing a
    plain file handle would drop the locks of this process.
    """
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    file = apsw.VFSFile("unix", str(path), flags)
    try:
        for number in range(file.xFileSize() // PAGE_BYTES):
            tries = (file.xRead(PAGE_BYTES, number * PAGE_BYTES) for _ in range(PAGE_TRIES))
            if not any(map(fits, tries)):
                yield number + 1
    finally:
        file.xClose()


def _numbered_key(number: int) -> bytes:
    return keys.delta(number) if number >= 0 else keys.prefix(keys.DELTA)


def _column(table: str) -> tuple[str, str]:
    """The column that a table's rows are ordered by, and how it is read."""
    return ("key", "CAST(key AS BLOB)") if table == RECORD else ("id", "id")


def _name(place: Place) -> str:
    return place.hex() if isinstance(place, bytes) else str(place)
