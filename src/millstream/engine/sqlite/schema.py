"""The schema of a store's file: its tables, and the row with its format.

    table              rows by                      lost rows are noticed by
    millstream_file    one row: what the file is    this module
    millstream_record  key, in two indexes          either index, if the other one misses a key
    millstream_payload message id                   the entry of a log that names the id
    millstream_block   first message id             the entry of a log that names the id
    millstream_delta   sequence, without gaps       SQLite's own check of this table, on opening

Two more tables belong to the application: it posts messages into `millstream_inbox`
(`embedded/sql_inbox.py`), and finds those that could not be moved in `millstream_inbox_failed`.

A flipped bit in an index or in an interior page makes rows vanish. The checksum beside a row cannot
show that. So the key of each record lies in two indexes: a bit cannot damage two indexes. Appends and
claims write deltas, and only folds write records. So the second index adds no processor time to single
appends, claims and reads (measured in turns, 2026-11). A link from each row to the next row would cost
more: each insert would change two rows.

`millstream_file` comes first in the schema: a page that loses its last cells loses the later tables,
and opening reports them as missing. Its row names the root page of each tree. A different root page
was moved by `VACUUM` of another tool, or is damaged: SQLite's check of the complete file decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import structs

from millstream.engine.checksum import row_checksum
from millstream.engine.sqlite.pages import RESERVED_BYTES
from millstream.errors import CannotOpen, CorruptionError
from millstream.format.version import FORMAT, FORMAT_SINCE, format_refusal

PREFIX = "millstream_"
RECORD = f"{PREFIX}record"
DELTA = f"{PREFIX}delta"
FIRST_INDEX = f"sqlite_autoindex_{RECORD}_1"
SECOND_INDEX = f"{PREFIX}record_again"

_FILE = f"{PREFIX}file"
_COLUMNS = "(id INTEGER PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL)"
_FILE_SQL = f"CREATE TABLE {_FILE} {_COLUMNS}"
_SECOND_SQL = f"CREATE UNIQUE INDEX {SECOND_INDEX} ON {RECORD} (key)"
_TABLES = {
    RECORD: f"CREATE TABLE {RECORD} "
    "(key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL)",
    f"{PREFIX}payload": f"CREATE TABLE {PREFIX}payload {_COLUMNS}",
    f"{PREFIX}block": f"CREATE TABLE {PREFIX}block {_COLUMNS}",
    DELTA: f"CREATE TABLE {DELTA} {_COLUMNS}",
}
_ORIGINAL: dict[str, tuple[str, str, str | None]] = {
    **{name: ("table", name, text) for name, text in _TABLES.items()},
    FIRST_INDEX: ("index", RECORD, None),
}
_ADDED: dict[str, tuple[str, str, str | None]] = {
    _FILE: ("table", _FILE, _FILE_SQL),
    SECOND_INDEX: ("index", RECORD, _SECOND_SQL),
}
_FILE_KEY = _FILE.encode()

INBOX = f"{PREFIX}inbox"
INBOX_FAILED = f"{PREFIX}inbox_failed"
_POST = "queue TEXT, log TEXT, value, headers TEXT, key, deliver_at, message_group TEXT, priority, dedup TEXT"
INBOX_TABLES = {
    INBOX: f"CREATE TABLE IF NOT EXISTS {INBOX} (id INTEGER PRIMARY KEY, {_POST})",
    INBOX_FAILED: f"CREATE TABLE IF NOT EXISTS {INBOX_FAILED} "
    f"(id INTEGER PRIMARY KEY, {_POST}, reason TEXT NOT NULL, failed_at INTEGER NOT NULL)",
}


class FileRow(msgspec.Struct, frozen=True):
    """The description of a file, in a row with a checksum."""

    format: int
    page_checksums: bool
    roots: dict[str, int]
    """The root page of each tree of Millstream."""
    shrunk: int = 0
    """Counts the steps in which Millstream has returned free pages to the disk."""
    since: str = ""
    """The first version of Millstream that knows the format; empty in files of earlier versions."""


class Schema(NamedTuple):
    """The schema of a file, as it was read."""

    row: FileRow | None
    """None in a file of an earlier version."""
    roots: dict[str, int]

    @property
    def is_twofold(self) -> bool:
        """True if the keys of records lie in two indexes."""
        return self.row is not None

    def has_page_checksums(self, connection: apsw.Connection) -> bool:
        """True if pages have checksums; earlier versions noted them in the header alone."""
        if self.row is not None:
            return self.row.page_checksums
        return int(connection.reserve_bytes()) == RESERVED_BYTES

    @property
    def is_moved(self) -> bool:
        """True if the root page of a tree differs from the file's row."""
        return self.row is not None and self.row.roots != self.roots


def create_schema(connection: apsw.Connection, *, page_checksums: bool) -> None:
    """Create all tables in an empty file; inside a transaction of the caller."""
    connection.execute(_FILE_SQL)
    for name, text in _TABLES.items():
        connection.execute(text)
        if name == RECORD:
            connection.execute(_SECOND_SQL)
    create_inbox(connection)
    write_file_row(connection, page_checksums=page_checksums)


def create_inbox(connection: apsw.Connection) -> None:
    """Create the tables of the inbox where they are missing; inside a transaction of the caller."""
    for text in INBOX_TABLES.values():
        connection.execute(text)


def refuse_posts(connection: apsw.Connection, reason: str) -> None:
    """Make SQLite refuse every post into the inbox, with a reason."""
    connection.execute(
        f"CREATE TRIGGER IF NOT EXISTS {INBOX}_refused BEFORE INSERT ON {INBOX} "
        f"BEGIN SELECT RAISE(ABORT, {apsw.format_sql_value(reason)}); END"
    )


def has_inbox(connection: apsw.Connection) -> bool:
    """Return whether a file has the tables of the inbox; another tool may have dropped them."""
    names = ", ".join(f"'{name}'" for name in INBOX_TABLES)
    return bool(
        connection.execute(f"SELECT count(*) = 2 FROM sqlite_schema WHERE name IN ({names})").get
    )


def complete_schema(connection: apsw.Connection) -> None:
    """Add the tables that a file of an earlier version lacks; inside a transaction of the caller."""
    connection.execute(_SECOND_SQL)
    connection.execute(_FILE_SQL)
    create_inbox(connection)


def write_file_row(connection: apsw.Connection, *, page_checksums: bool, shrunk: int = 0) -> None:
    """Write the row that describes the file, with the present root pages."""
    _write_row(
        connection, FileRow(FORMAT, page_checksums, _roots(connection), shrunk, FORMAT_SINCE)
    )


def shrunk_of(connection: apsw.Connection) -> int | None:
    """Return the count of steps that made the file smaller; None in a file of an earlier version."""
    try:
        value: Any = connection.execute(f"SELECT value FROM {_FILE} WHERE id = 1").get
        return None if value is None else msgspec.json.decode(value, type=FileRow).shrunk
    except (apsw.SQLError, msgspec.MsgspecError):
        return None  # without the table, or damaged, which opening reports


def note_shrunk(connection: apsw.Connection) -> int:
    """Count a step that makes the file smaller, inside its transaction; return the new count."""
    row = _read_row(connection)
    row = structs.replace(row, shrunk=row.shrunk + 1)
    _write_row(connection, row)
    return row.shrunk


def _write_row(connection: apsw.Connection, row: FileRow) -> None:
    value = msgspec.json.encode(row, order="sorted")
    connection.execute(
        f"INSERT OR REPLACE INTO {_FILE} (id, value, crc) VALUES (1, ?, ?)",
        (value, row_checksum(_FILE_KEY, value)),
    )


def has_tables(connection: apsw.Connection) -> bool:
    """True if the file has the tables of a store; its header is not considered."""
    tables = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (RECORD,))
    return tables.fetchone() is not None


def read_schema(connection: apsw.Connection) -> Schema:
    """Compare the schema of a file with the expected one. Raises `CorruptionError`, `CannotOpen`."""
    objects = _stored_objects(connection)
    is_added = not _ADDED.keys().isdisjoint(objects)
    expected = {**_ORIGINAL, **_ADDED} if is_added else _ORIGINAL
    for name, definition in expected.items():
        present = objects.get(name)
        if present is None or present[0] != definition:
            damage = "is missing" if present is None else "is not defined as it was made"
            raise CorruptionError(f"{definition[0]} {name} {damage}", what="schema", where=name)
    roots = {name: root for name, (_, root) in objects.items()}
    pages = connection.pragma("page_count")
    if len(set(roots.values())) < len(roots) or not all(
        1 < root <= pages for root in roots.values()
    ):
        raise CorruptionError(
            "two trees begin at one page, or outside the file", what="schema", where=""
        )
    return Schema(_read_row(connection) if is_added else None, roots)


def _stored_objects(
    connection: apsw.Connection,
) -> dict[str, tuple[tuple[str, str, str | None], int]]:
    """Return the definitions and root pages of our trees, as SQLite has stored them."""
    try:
        rows: list[Any] = connection.execute(
            "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema "
            "WHERE type IN ('table', 'index')"
        ).fetchall()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"a text is damaged: {error}", what="schema", where="") from error
    return {
        name: ((kind, table, text), root)
        for kind, name, table, root, text in rows
        if name in _ORIGINAL or name in _ADDED
    }


def _read_row(connection: apsw.Connection) -> FileRow:
    rows: list[Any] = connection.execute(f"SELECT id, value, crc FROM {_FILE}").fetchall()
    try:
        ((number, value, crc),) = rows
        if number != 1 or row_checksum(_FILE_KEY, value) != crc:
            raise ValueError("its checksum does not fit")
        row = msgspec.json.decode(value, type=FileRow)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"the row of {_FILE}: {error}", what="row", where=_FILE) from error
    path = connection.filename
    if refusal := format_refusal(path, row.format, row.since):
        raise CannotOpen(refusal, path=path)
    return row


def _roots(connection: apsw.Connection) -> dict[str, int]:
    rows: list[Any] = connection.execute("SELECT name, rootpage FROM sqlite_schema").fetchall()
    return {name: root for name, root in rows if name in _ORIGINAL or name in _ADDED}
