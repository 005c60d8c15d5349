"""A step of a scrub over the tables of a SQLite file, in one snapshot.

A step compares the checksum of each row. It looks up every record by its key in both indexes, and
every index entry in the table: so a row that a damaged page hides from one tree is found through the
other. Deltas must have no gap. Referenced rows must exist. One snapshot serves the complete step, so
that rows which are written, folded or deleted meanwhile cannot look like damage.

An unreadable page is one finding, and the step continues behind the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from millstream.engine.checksum import row_checksum
from millstream.engine.protocol import MissingRow, Reference, ScrubStep, StepBounds, Unsound
from millstream.engine.sqlite.file import is_damage, reason_of
from millstream.engine.sqlite.rows import NUMBERED
from millstream.engine.sqlite.schema import FIRST_INDEX, RECORD, SECOND_INDEX
from millstream.format import keys
from millstream.format.described import describe

SCRUB_CACHE_KIB = 512
"""Cache of the connection that scrubs: it reads each page once or twice, and not again for hours."""

STAGES = ("records", "index", "second index", "payloads", "blocks", "commits")
_INDEXES = {"index": FIRST_INDEX, "second index": SECOND_INDEX}
_NUMBERED_STAGES = {
    "payloads": keys.PAYLOAD,
    "blocks": keys.PAYLOAD_BLOCK,
    "commits": keys.DELTA,
}

CHECKED_COLUMNS = (
    "CAST(value AS BLOB), CAST(crc AS INTEGER), typeof(value) || ' and ' || typeof(crc)"
)
"""With casts, because Python would try to decode a value with a damaged type as text."""
COLUMN_TYPES = "blob and integer"

_BY_INDEX = {
    index: f"SELECT rowid FROM {RECORD} INDEXED BY {index} WHERE key = ?"
    for index in _INDEXES.values()
}
_BY_ROW = f"SELECT CAST(key AS BLOB) FROM {RECORD} NOT INDEXED WHERE rowid = ?"
_FIRST_NUMBER = -(2**63)
_LAST_NUMBER = 2**63 - 1
_KEY_BYTES = 10
"""Bytes of a key that form its number: the prefix and the first u64."""

_UNREADABLE = {apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS}

Place = int | bytes
"""A row's number, or a record's key in the index."""


def problem_of(key: bytes, value: bytes | None, crc: int | None, types: str) -> str:
    """Describe the damage of a row, by the columns `CHECKED_COLUMNS`; empty for a sound row."""
    if value is None or types != COLUMN_TYPES:
        return f"its columns are not {COLUMN_TYPES}, but {types}"
    return "" if row_checksum(key, value) == crc else "its checksum does not fit"


def is_unreadable(error: apsw.Error) -> bool:
    """True if SQLite met damaged bytes, or bytes that the disk could not read."""
    return is_damage(error) or getattr(error, "extendedresult", 0) in _UNREADABLE


def bound_cache(connection: apsw.Connection) -> None:
    """Give the connection of the scrub its small cache."""
    connection.execute(f"PRAGMA cache_size = -{SCRUB_CACHE_KIB}")


def scrub_step(
    connection: apsw.Connection, stage: str, at: str, bounds: StepBounds, needs: Reference
) -> ScrubStep:
    """Continue to read a stage; raises `apsw.Error` only for errors without damage."""
    walk = _StageWalk(connection, stage, at, bounds, needs)
    try:
        connection.execute("BEGIN")
        return walk.run()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _StageWalk:
    """The progress of one step: position, counts and findings."""

    def __init__(
        self, connection: apsw.Connection, stage: str, at: str, bounds: StepBounds, needs: Reference
    ) -> None:
        self._execute = connection.cursor().execute
        self._look_up = connection.cursor().execute
        """Uses a second cursor: the first cursor is in the middle of the walk."""
        self._stage, self._bounds, self._needs = stage, bounds, needs
        self._kind = _NUMBERED_STAGES.get(stage)
        self._table = RECORD if self._kind is None else NUMBERED[self._kind]
        self._index = _INDEXES.get(stage, FIRST_INDEX)
        self._by_key = stage in _INDEXES
        self._indexes = [index for index in _INDEXES.values() if self._has_index(index)]
        """A file of an earlier version has only the first index."""
        self._start: Place = self._parsed(at)
        """The first unread place."""
        self._rows = self._bytes = 0
        self._unsound: list[Unsound] = []
        self._missing: list[MissingRow] = []

    def run(self) -> ScrubStep:
        """Read until a bound is reached, the stage ends, or a page cannot be read."""
        ended = True
        if self._by_key and self._index not in self._indexes:
            return ScrubStep(None, 0, 0, 1.0, [], [])
        try:
            for place, *columns in self._selected():
                if not self._is_next(place):
                    ended = not self._pass_over("its pages are mixed up")
                    break
                self._check_gap(place)
                self._check(place, columns)
                if place == _LAST_NUMBER:
                    break
                self._start = _following(place)
                if self._is_bounded():
                    ended = False
                    break
        except apsw.Error as error:
            if not is_unreadable(error):
                raise
            ended = not self._pass_over(reason_of(error))
        fraction = 1.0 if ended else self._fraction()
        next_at = None if ended else self._text(self._start)
        return ScrubStep(next_at, self._rows, self._bytes, fraction, self._unsound, self._missing)

    def _has_index(self, index: str) -> bool:
        query = "SELECT 1 FROM sqlite_schema WHERE name = ?"
        return self._looked_up(query, index, unreadable=1) is not None

    def _selected(self) -> Iterator[Any]:
        if self._by_key:
            query = f"SELECT CAST(key AS BLOB), rowid FROM {RECORD} INDEXED BY {self._index} WHERE key >= ? ORDER BY key"
        elif self._kind is None:
            query = (
                f"SELECT rowid, {CHECKED_COLUMNS}, CAST(key AS BLOB) FROM {RECORD} NOT INDEXED "
                "WHERE rowid >= ? ORDER BY rowid"
            )
        else:
            query = f"SELECT id, {CHECKED_COLUMNS} FROM {self._table} WHERE id >= ? ORDER BY id"
        return iter(self._execute(query, (self._start,)))

    def _is_next(self, place: Any) -> bool:
        """True if a row lies at or behind the walk's position; mixed-up pages return other rows."""
        start: Any = self._start
        return type(place) is type(start) and bool(place >= start)

    def _check(self, place: Place, columns: list[Any]) -> None:
        self._rows += 1
        if self._by_key:
            assert isinstance(place, bytes)
            self._bytes += len(place)
            self._check_index_entry(place, columns[0])
            return
        value, crc, types, *key = columns
        self._bytes += len(value or b"")
        if self._kind is None:
            self._check_record(place, key[0] or b"", value, crc, types)
        elif place < 0:  # type: ignore[operator]
            self._report(place, f"{self._named(place)}: its number is negative")
        elif problem := problem_of(self._key(place), value, crc, types):
            self._report(place, f"{self._named(place)}: {problem}")

    def _check_record(self, row: Place, key: bytes, value: Any, crc: Any, types: str) -> None:
        self._bytes += len(key)
        if problem := problem_of(key, value, crc, types):
            self._report(row, f"{describe(key)}: {problem}")
            return
        rows = [self._looked_up(_BY_INDEX[index], key, unreadable=row) for index in self._indexes]
        if any(indexed != row for indexed in rows):
            self._report(row, f"{describe(key)}: it is stored, and the index does not lead to it")
        child = self._needs(key, value)
        if child is not None and not self._has(child):
            self._missing.append(MissingRow(self._text(row), key, child))

    def _check_index_entry(self, key: bytes, row: int) -> None:
        stored = self._looked_up(_BY_ROW, row, unreadable=key)
        if stored is None:
            self._report(key, f"{describe(key)}: it is in the index, and its row is gone")
        elif stored != key:
            self._report(key, f"{describe(key)}: the index leads to another row")

    def _looked_up(self, query: str, place: Place | str, *, unreadable: Any) -> Any:
        """Return the first column of a query in another tree, or None without a row.

        For a damaged page, return `unreadable`: the stage of the other tree reports the page, once.
        """
        try:
            row = self._look_up(query, (place,)).fetchone()
        except apsw.Error as error:
            if not is_unreadable(error):
                raise
            return unreadable
        return None if row is None else row[0]

    def _check_gap(self, place: Place) -> None:
        """Report a gap between deltas: folds delete the oldest first, so no gap may be left."""
        start = self._start
        if self._kind != keys.DELTA or place == start or start == _FIRST_NUMBER:
            return
        query = f"SELECT 1 FROM {self._table} WHERE id < ? LIMIT 1"
        if self._look_up(query, (start,)).fetchone() is not None:
            self._report(start, f"{self._named(start)} is gone, and {self._named(place)} is there")

    def _has(self, key: bytes) -> bool:
        table = NUMBERED.get(key[1])
        if table is None:
            return self._looked_up(_BY_INDEX[FIRST_INDEX], key, unreadable=0) is not None
        query = f"SELECT id FROM {table} WHERE id = ?"
        return self._looked_up(query, keys.number(key), unreadable=0) is not None

    def _pass_over(self, why: str) -> bool:
        """Report unreadable pages, and continue behind them; False if no later row can be read."""
        start = self._start
        behind = self._first_behind(_as_number(start))
        until = "the end" if behind is None else f"before {self._named(behind)}"
        self._report(
            start, f"{self._stage} cannot be read from {self._named(start)} to {until}: {why}"
        )
        if behind is not None:
            self._start = behind
        return behind is not None

    def _first_behind(self, damaged: int) -> Place | None:
        """Find the first row behind damaged pages, at distances that double, and then halve."""
        damaged, distance = max(damaged, -1), 1
        last = 256**_KEY_BYTES - 1 if self._by_key else _LAST_NUMBER
        row = None
        while row is None and damaged < last:
            target = min(damaged + distance, last)
            row, is_end = self._row_from(target)
            if is_end:
                return None
            if row is None:
                damaged, distance = target, distance * 2
        readable = damaged + distance
        while readable - damaged > 1:
            middle = (damaged + readable) // 2
            nearer, _ = self._row_from(middle)
            if nearer is None:
                damaged = middle
            else:
                readable, row = middle, nearer
        return row

    def _row_from(self, number: int) -> tuple[Place | None, bool]:
        """Return the first readable row at or behind a number, and True if no row follows."""
        place = number.to_bytes(_KEY_BYTES, "big") if self._by_key else number
        column = "key" if self._by_key else "rowid"
        index = f"INDEXED BY {self._index}" if self._by_key else "NOT INDEXED"
        query = (
            f"SELECT {column} FROM {self._table} {index} WHERE {column} >= ? "
            f"ORDER BY {column} LIMIT 1"
        )
        try:
            row = self._execute(query, (place,)).fetchone()
        except (apsw.Error, UnicodeDecodeError) as error:
            if isinstance(error, apsw.Error) and not is_unreadable(error):
                raise
            return None, False
        if row is None:
            return None, True
        return (row[0] if self._is_next(row[0]) and row[0] >= place else None), False

    def _fraction(self) -> float:
        column = "key" if self._by_key else "rowid"
        try:
            ends = [
                place
                for extreme in ("min", "max")
                for (place,) in self._look_up(f"SELECT {extreme}({column}) FROM {self._table}")
            ]
        except (apsw.Error, UnicodeDecodeError):  # a key is damaged
            return 0.0
        first, last = map(_as_number, ends)
        return min(1.0, max(0.0, (_as_number(self._start) - first) / (last - first + 1)))

    def _is_bounded(self) -> bool:
        bounds = self._bounds
        return self._rows >= bounds.rows or self._bytes >= bounds.bytes or bounds.is_over()

    def _report(self, place: Place, message: str) -> None:
        self._unsound.append(Unsound(self._stage, self._text(place), message))

    def _named(self, place: Place) -> str:
        """Describe a place; the first number of a table is its beginning."""
        if isinstance(place, bytes):
            return describe(place) if place else "the beginning"
        if place == _FIRST_NUMBER:
            return "the beginning"
        if self._kind is None or place < 0:
            return f"row {place} of the records" if self._kind is None else f"row {place}"
        return describe(self._key(place))

    def _key(self, number: Place) -> bytes:
        assert isinstance(number, int)
        assert self._kind is not None
        return keys.numbered(self._kind, number)

    def _parsed(self, at: str) -> Place:
        if self._by_key:
            return bytes.fromhex(at)
        return int(at) if at else _FIRST_NUMBER

    @staticmethod
    def _text(place: Place) -> str:
        return place.hex() if isinstance(place, bytes) else str(place)


def _following(place: Place) -> Place:
    """Return the next possible place."""
    return keys.successor(place) if isinstance(place, bytes) else place + 1


def _as_number(place: Any) -> int:
    """Return a place as a number; 0 for a damaged value that is no place."""
    if isinstance(place, bytes):
        return int.from_bytes(place[:_KEY_BYTES].ljust(_KEY_BYTES, b"\x00"), "big")
    return place if isinstance(place, int) else 0
