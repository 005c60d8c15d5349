"""Copies of rows between two engines of any kind, and the comparison of both.

Rows are copied by type, deltas last and in one commit. So an interrupted copy cannot be opened as a
store, and the next run continues: it compares existing rows, and does not write them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.engine.commit import Commit, Row
from millstream.engine.protocol import Engine, Snapshot
from millstream.errors import CannotOpen, CorruptionError, DiskFull, OutcomeUnknown
from millstream.format import keys

COMMIT_BYTES = 4 * 1024 * 1024
SCAN_ROWS = 64

Heard = Callable[[str, int, int], None]
"""Receives progress: the stage, the rows done, and the total; 0 for an unknown total."""

_FIRST = (keys.STORE, keys.ID_BLOCK)
"""Rows of every store: with these rows and without deltas, opening refuses a store as damaged."""


class CopyReport(NamedTuple):
    """The result of a copy of rows."""

    rows: int
    bytes: int
    written: int
    """Rows that the target did not have, or had with other values."""


def copy_rows(source: Engine, target: Engine, heard: Heard | None = None) -> CopyReport:
    """Make the rows of the target equal to the source, byte for byte, and compare all rows.

    Raises `CannotOpen` if the target holds another store, or a copy that was written since.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    with source.read() as snapshot:
        if snapshot.last_seq() == 0:
            raise CannotOpen(f"there is no store at {source.place}", path=source.place)
        if not target.last_seq():
            written = _copy(snapshot, target, hear)
        elif _first_difference(snapshot, target, hear) is None:
            written = 0
        else:
            raise CannotOpen(
                f"there is a store at {target.place} already, and it is not the one at "
                f"{source.place}: nothing was changed; copy to another place, or remove it",
                path=target.place,
            )
        return compare_rows(snapshot, target, hear)._replace(written=written)


def _copy(snapshot: Snapshot, target: Engine, hear: Heard) -> int:
    written = done = 0
    for kind in _kinds():
        rows: list[Row] = []
        deletes: list[bytes] = []
        size = 0
        in_one_commit = kind == keys.DELTA
        for key, source_value, target_value in _pairs(snapshot, target, kind):
            done += 1
            if source_value is None:
                deletes.append(key)
            elif source_value != target_value:
                rows.append((key, source_value))
                size += len(source_value)
            if size >= COMMIT_BYTES and not in_one_commit:
                written += _commit(target, rows, deletes)
                rows, deletes, size = [], [], 0
                hear("copying", done, 0)
        written += _commit(target, rows, deletes)
    return written


def _commit(target: Engine, rows: list[Row], deletes: list[bytes]) -> int:
    if rows or deletes:
        shortage = target.shortage()
        try:
            if shortage is not None:
                raise shortage.error()
            with target.write() as writer:
                writer.commit(Commit(rows, deletes=deletes))
        except (DiskFull, OutcomeUnknown) as error:
            raise type(error)(
                f"the copy to {target.place} broke off: {error.message}. Copy again once that is "
                "mended: it goes on with what is there, and compares all of it",
                **{**error.data, "path": target.place},
            ) from error
    return len(rows)


def compare_rows(snapshot: Snapshot, target: Engine, hear: Heard) -> CopyReport:
    """Compare all rows of a copy with the snapshot; raise `CorruptionError` for a difference."""
    rows = size = 0
    for kind in _kinds():
        for key, source_value, target_value in _pairs(snapshot, target, kind):
            if source_value != target_value or source_value is None:
                raise CorruptionError(
                    f"the row {key.hex()} of {target.place} is not what was copied; run it again",
                    what="row",
                    where=key.hex(),
                )
            rows += 1
            size += len(key) + len(source_value)
            if rows % 1_000 == 0:
                hear("comparing", rows, 0)
    return CopyReport(rows, size, written=0)


def _first_difference(snapshot: Snapshot, target: Engine, hear: Heard) -> bytes | None:
    hear("comparing", 0, 0)
    for kind in _kinds():
        for key, source_value, target_value in _pairs(snapshot, target, kind):
            if source_value != target_value:
                return key
    return None


def _kinds() -> Iterator[int]:
    """Yield all types of records, in the order of the copy."""
    yield from _FIRST
    yield from (kind for kind in range(256) if kind not in (*_FIRST, keys.DELTA))
    yield keys.DELTA


def _pairs(
    snapshot: Snapshot, target: Engine, kind: int
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yield every key of a type in source or target, in order, with both values."""
    with target.read() as target_snapshot:
        sources, targets = _rows(snapshot, kind), _rows(target_snapshot, kind)
        source, copy = next(sources, None), next(targets, None)
        while source is not None or copy is not None:
            key = min(row[0] for row in (source, copy) if row is not None)
            source_value = target_value = None
            if source is not None and source[0] == key:
                source_value, source = source[1], next(sources, None)
            if copy is not None and copy[0] == key:
                target_value, copy = copy[1], next(targets, None)
            yield key, source_value, target_value


def _rows(snapshot: Snapshot, kind: int) -> Iterator[Row]:
    start = bytes((keys.VERSION, kind))
    stop = bytes((keys.VERSION, kind + 1)) if kind < 255 else bytes((keys.VERSION + 1,))
    while rows := snapshot.scan(start, stop, limit=SCAN_ROWS):
        yield from rows
        start = keys.successor(rows[-1][0])
