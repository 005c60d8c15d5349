"""One step of a scrub over the tables of a SQLite file, in one snapshot.

Each row's checksum is compared. Every record is looked up by its key in the index, and every entry of
the index leads to its record: so a row that a damaged page hides from one of the two is found through
the other. Deltas have no gap. Rows that other rows need are asked for. All of it is compared within
one snapshot, so that rows which are written, folded or deleted meanwhile cannot look like damage.

A page that cannot be read is one finding, and the step goes on behind it.
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
"""Cast, since a damaged type would make Python decode text that is none."""
COLUMN_TYPES = "blob and integer"

_BY_INDEX = {
    index: f"SELECT rowid FROM {RECORD} INDEXED BY {index} WHERE key = ?"
    for index in _INDEXES.values()
}
_BY_ROW = f"SELECT CAST(key AS BLOB) FROM {RECORD} NOT INDEXED WHERE rowid = ?"
_FIRST_NUMBER = -(2**63)
_LAST_NUMBER = 2**63 - 1
_KEY_BYTES = 10
"""Bytes of a key that are counted as a number: the prefix and the first u64."""

_UNREADABLE = {apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS}

Place = int | bytes
"""A row's number, or a record's key in the index."""


def problem_of(key: bytes, value: bytes | None, crc: int | None, types: str) -> str:
    """What is wrong with a row, by the columns `CHECKED_COLUMNS`; empty if it is sound."""
    if value is None or types != COLUMN_TYPES:
        return f"its columns are not {COLUMN_TYPES}, but {types}"
    return "" if row_checksum(key, value) == crc else "its checksum does not fit"


def is_unreadable(error: apsw.Error) -> bool:
    """Whether SQLite met bytes that are not what was written, or that the disk does not give back."""
    return is_damage(error) or getattr(error, "extendedresult", 0) in _UNREADABLE


def scrub_step(
    connection: apsw.Connection, stage: str, at: str, bounds: StepBounds, needs: Reference
) -> ScrubStep:
    """Read on in a stage; raises `apsw.Error` only for what is no damage."""
    walk = _StageWalk(connection, stage, at, bounds, needs)
    try:
        connection.execute("BEGIN")
        return walk.run()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _StageWalk:
    """One step: what it has read so far."""

    def __init__(
        self, connection: apsw.Connection, stage: str, at: str, bounds: StepBounds, needs: Reference
    ) -> None:
        self._execute = connection.cursor().execute
        self._look_up = connection.cursor().execute
        """On a cursor of its own: the first one is in the middle of the walk."""
        self._stage, self._bounds, self._needs = stage, bounds, needs
        self._kind = _NUMBERED_STAGES.get(stage)
        self._table = RECORD if self._kind is None else NUMBERED[self._kind]
        self._index = _INDEXES.get(stage, FIRST_INDEX)
        self._by_key = stage in _INDEXES
        self._indexes = [one for one in _INDEXES.values() if self._is_there(one)]
        """A file that an earlier version has made has one index."""
        self._start: Place = self._parsed(at)
        """The first place that is not read yet."""
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

    def _is_there(self, index: str) -> bool:
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
        """Whether a row lies where the walk is: a tree whose pages are mixed up gives others."""
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
        found = [self._looked_up(_BY_INDEX[one], key, unreadable=row) for one in self._indexes]
        if any(one != row for one in found):
            self._report(row, f"{describe(key)}: it is stored, and the index does not lead to it")
        child = self._needs(key, value)
        if child is not None and not self._has(child):
            self._missing.append(MissingRow(self._text(row), key, child))

    def _check_index_entry(self, key: bytes, row: int) -> None:
        found = self._looked_up(_BY_ROW, row, unreadable=key)
        if found is None:
            self._report(key, f"{describe(key)}: it is in the index, and its row is gone")
        elif found != key:
            self._report(key, f"{describe(key)}: the index leads to another row")

    def _looked_up(self, query: str, place: Place | str, *, unreadable: Any) -> Any:
        """What a query finds in another tree, or None; a page of it that is damaged answers `unreadable`.

        The stage that walks the other tree reports such a page, once.
        """
        try:
            found = self._look_up(query, (place,)).fetchone()
        except apsw.Error as error:
            if not is_unreadable(error):
                raise
            return unreadable
        return None if found is None else found[0]

    def _check_gap(self, place: Place) -> None:
        """Deltas go away from the oldest on: behind one that is there, the next must be."""
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
        """Note what cannot be read, and go on behind it; False if nothing behind it can be read."""
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
        """The first row behind damaged pages: looked for at distances that double, then halve."""
        damaged, distance = max(damaged, -1), 1
        last = 256**_KEY_BYTES - 1 if self._by_key else _LAST_NUMBER
        found = None
        while found is None and damaged < last:
            target = min(damaged + distance, last)
            found, is_end = self._row_from(target)
            if is_end:
                return None
            if found is None:
                damaged, distance = target, distance * 2
        readable = damaged + distance
        while readable - damaged > 1:
            middle = (damaged + readable) // 2
            nearer, _ = self._row_from(middle)
            if nearer is None:
                damaged = middle
            else:
                readable, found = middle, nearer
        return found

    def _row_from(self, number: int) -> tuple[Place | None, bool]:
        """The first row at or behind a number, if it can be reached; and whether none is there."""
        place = number.to_bytes(_KEY_BYTES, "big") if self._by_key else number
        column = "key" if self._by_key else "rowid"
        index = f"INDEXED BY {self._index}" if self._by_key else "NOT INDEXED"
        query = (
            f"SELECT {column} FROM {self._table} {index} WHERE {column} >= ? "
            f"ORDER BY {column} LIMIT 1"
        )
        try:
            found = self._execute(query, (place,)).fetchone()
        except (apsw.Error, UnicodeDecodeError) as error:
            if isinstance(error, apsw.Error) and not is_unreadable(error):
                raise
            return None, False
        if found is None:
            return None, True
        return (found[0] if self._is_next(found[0]) and found[0] >= place else None), False

    def _fraction(self) -> float:
        column = "key" if self._by_key else "rowid"
        try:
            ends = [
                found
                for which in ("min", "max")
                for (found,) in self._look_up(f"SELECT {which}({column}) FROM {self._table}")
            ]
        except (apsw.Error, UnicodeDecodeError):  # of a damaged key
            return 0.0
        first, last = map(_as_number, ends)
        return min(1.0, max(0.0, (_as_number(self._start) - first) / (last - first + 1)))

    def _is_bounded(self) -> bool:
        bounds = self._bounds
        return self._rows >= bounds.rows or self._bytes >= bounds.bytes or bounds.is_over()

    def _report(self, place: Place, message: str) -> None:
        self._unsound.append(Unsound(self._stage, self._text(place), message))

    def _named(self, place: Place) -> str:
        """A place in words; the first number of a table stands for its beginning."""
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
    """The first place behind one."""
    return keys.successor(place) if isinstance(place, bytes) else place + 1


def _as_number(place: Any) -> int:
    """A place as a number; what is no place, because of damage, counts as 0."""
    if isinstance(place, bytes):
        return int.from_bytes(place[:_KEY_BYTES].ljust(_KEY_BYTES, b"\x00"), "big")
    return place if isinstance(place, int) else 0
