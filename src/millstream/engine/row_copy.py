"""Copies: all rows of one engine into another, of whatever kind, and then both compared.

Rows go over in the order of their types, deltas last and in one commit. So a copy that was broken
off cannot be opened as a store, and the next run goes on: what is there already is compared, not sent again.
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
"""Told the stage, how many rows are done, and of how many; 0 if that is not known."""

_FIRST = (keys.STORE, keys.ID_BLOCK)
"""What every store has: with it and without deltas, opening refuses what is there as damaged."""


class CopyReport(NamedTuple):
    """What a copy did."""

    rows: int
    bytes: int
    written: int
    """Rows that were not there yet, or were others."""


def copy_rows(source: Engine, target: Engine, heard: Heard | None = None) -> CopyReport:
    """Make the rows of the target those of the source, byte for byte, and compare them all.

    Raises `CannotOpen` if the target holds another store, or one that has gone on since.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    with source.read() as snapshot:
        if snapshot.last_seq() == 0:
            raise CannotOpen(f"there is no store at {source.place}", path=source.place)
        found = target.last_seq()
        if not found:
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
        gone: list[bytes] = []
        size = 0
        whole = kind == keys.DELTA
        for key, wanted, there in _pairs(snapshot, target, kind):
            done += 1
            if wanted is None:
                gone.append(key)
            elif wanted != there:
                rows.append((key, wanted))
                size += len(wanted)
            if size >= COMMIT_BYTES and not whole:
                written += _commit(target, rows, gone)
                rows, gone, size = [], [], 0
                hear("copying", done, 0)
        written += _commit(target, rows, gone)
    return written


def _commit(target: Engine, rows: list[Row], gone: list[bytes]) -> int:
    if rows or gone:
        shortage = target.shortage()
        try:
            if shortage is not None:
                raise shortage.error()
            with target.write() as writer:
                writer.commit(Commit(rows, deletes=gone))
        except (DiskFull, OutcomeUnknown) as error:
            raise type(error)(
                f"the copy to {target.place} broke off: {error.message}. Copy again once that is "
                "mended: it goes on with what is there, and compares all of it",
                **{**error.data, "path": target.place},
            ) from error
    return len(rows)


def compare_rows(snapshot: Snapshot, target: Engine, hear: Heard) -> CopyReport:
    """Compare all rows of a copy with what was copied; `CorruptionError` if one differs."""
    rows = size = 0
    for kind in _kinds():
        for key, wanted, there in _pairs(snapshot, target, kind):
            if wanted != there or wanted is None:
                raise CorruptionError(
                    f"the row {key.hex()} of {target.place} is not what was copied; run it again",
                    what="row",
                    where=key.hex(),
                )
            rows += 1
            size += len(key) + len(wanted)
            if rows % 1_000 == 0:
                hear("comparing", rows, 0)
    return CopyReport(rows, size, written=0)


def _first_difference(snapshot: Snapshot, target: Engine, hear: Heard) -> bytes | None:
    hear("comparing", 0, 0)
    for kind in _kinds():
        for key, wanted, there in _pairs(snapshot, target, kind):
            if wanted != there:
                return key
    return None


def _kinds() -> Iterator[int]:
    """All types of records, in the order in which they are copied."""
    yield from _FIRST
    yield from (kind for kind in range(256) if kind not in (*_FIRST, keys.DELTA))
    yield keys.DELTA


def _pairs(
    snapshot: Snapshot, target: Engine, kind: int
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Every key of a type that either side has, in order, with both values."""
    with target.read() as there:
        left, right = _rows(snapshot, kind), _rows(there, kind)
        one, other = next(left, None), next(right, None)
        while one is not None or other is not None:
            key = min(row[0] for row in (one, other) if row is not None)
            mine = theirs = None
            if one is not None and one[0] == key:
                mine, one = one[1], next(left, None)
            if other is not None and other[0] == key:
                theirs, other = other[1], next(right, None)
            yield key, mine, theirs


def _rows(snapshot: Snapshot, kind: int) -> Iterator[Row]:
    start = bytes((keys.VERSION, kind))
    stop = bytes((keys.VERSION, kind + 1)) if kind < 255 else bytes((keys.VERSION + 1,))
    while rows := snapshot.scan(start, stop, limit=SCAN_ROWS):
        yield from rows
        start = keys.successor(rows[-1][0])
