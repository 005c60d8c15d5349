"""A backup run: it adds a point to a place, and deletes points that are too old.

The run reads every page of one snapshot beside running commits, and stores the chunks that the place
lacks. The point is written last. So a killed run has added nothing but chunks, which the next run
finds again.

The first run, and one run per day, compare the checksums of all rows before they add a point: a damaged
store would otherwise be backed up as it is. `BackupPoint.checked_ms` tells when that was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from msgspec.structs import replace

from millstream.backup import point as points
from millstream.backup.chunks import CHUNK_BYTES, ChunkStore, Piece, in_threads
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace, Check
from millstream.backup.point import BackupPoint
from millstream.backup.source import PointSource, open_source, refuse_overlap
from millstream.backup.sweep import sweep
from millstream.clock import Clock, SystemClock
from millstream.engine.row_copy import Heard
from millstream.errors import DiskFull

CHECK_MS = 24 * 3600 * 1000
"""How old the last check of all rows may be."""

CHUNKS_AT_ONCE = 4
"""Chunks that one piece of work of a thread has."""


class BackupReport(NamedTuple):
    """The result of a run."""

    point: BackupPoint
    chunks: int
    """Chunks of the point, with its lists."""
    stored_chunks: int
    """Chunks that the place did not have."""
    stored_bytes: int
    deleted_points: int
    """Points that were too old."""


def back_up(
    store: str | os.PathLike[str],
    place: str | os.PathLike[str],
    *,
    keep: Keep | None = None,
    compress: bool | None = None,
    heard: Heard | None = None,
    clock: Clock | None = None,
) -> BackupReport:
    """Add a point of a store to a place. The store may be in use.

    `compress` is by default True for a bucket and False for a folder, where it would take most of
    the time.
    """
    target = BackupPlace(place)
    refuse_overlap(store, target)
    hear = heard or _quiet
    return add_point(
        target,
        open_source(store, hear),
        keep=keep,
        compress=compress,
        heard=hear,
        clock=clock or SystemClock(),
    )


def add_point(
    place: BackupPlace,
    opening: AbstractContextManager[PointSource],
    *,
    keep: Keep | None,
    compress: bool | None,
    heard: Heard,
    clock: Clock,
) -> BackupReport:
    """Add a point of a source to a place, and delete points that are too old."""
    with opening as source:
        place.check(source.store)
        with place.locked(clock) as check:
            return store_point(
                place, source, check, keep=keep, compress=compress, heard=heard, clock=clock
            )


def store_point(
    place: BackupPlace,
    source: PointSource,
    check: Check,
    *,
    keep: Keep | None,
    compress: bool | None,
    heard: Heard,
    clock: Clock,
) -> BackupReport:
    """Store a point, and delete points that are too old; the caller holds the lock of the place."""
    chunks = ChunkStore(
        place.objects, compress=place.folder is None if compress is None else compress
    )
    try:
        point, count = _store(place, source, chunks, heard=heard, clock=clock)
        check()
        place.objects.sync()
        place.objects.put(point.name, points.encode(point))
        place.objects.sync()
    except DiskFull as error:
        raise DiskFull(
            f"the backup to {place.text} broke off: its disk is full, and there is no new point; "
            "free space on the disk, and run it again: it goes on with what is there",
            **error.data,
        ) from error
    deleted = 0 if keep is None else sweep(place, keep, now_ms=clock.wall_ms(), check=check)
    return BackupReport(point, count, chunks.stored_chunks, chunks.stored_bytes, deleted)


def _store(
    place: BackupPlace, source: PointSource, chunks: ChunkStore, *, heard: Heard, clock: Clock
) -> tuple[BackupPoint, int]:
    """Store the chunks that the place lacks; return the point, which is not written yet."""
    now_ms = clock.wall_ms()
    earlier = place.points()
    checks = [point.checked_ms for point in earlier]
    checked_ms = max(checks, default=0)
    is_due = not checks or now_ms - checked_ms >= CHECK_MS
    chunks.look()
    names: list[str] = []

    def put_all(pieces: list[Piece]) -> list[str]:
        return [chunks.put(piece) for piece in pieces]

    with source.capture(chunks.stored_names, checks_rows=is_due, heard=heard) as (point, pieces):
        place.claim(source.store)  # not before: a damaged store leaves the place as it is
        total = -(-point.file_bytes // CHUNK_BYTES)
        batches = _Batches(pieces)
        for stored in in_threads(put_all, batches, workers=place.objects.workers):
            names += stored
            heard("storing", len(names), total)
        if batches.failure is not None:
            raise batches.failure
    lists = chunks.put_lists(names)
    point = replace(
        point,
        number=1 + max((point.number for point in earlier), default=0),
        taken_ms=now_ms,
        checked_ms=now_ms if is_due else checked_ms,
        lists=lists,
    )
    return point, len(names) + len(lists)


class _Batches:
    """Pieces in lists of a few. A source that fails ends the lists, and is noted.

    So all pieces that came before the failure are stored, and the next run does not need them again.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        try:
            for piece in self._pieces:
                batch.append(piece)
                if len(batch) == CHUNKS_AT_ONCE:
                    yield batch
                    batch = []
        except Exception as error:
            self.failure = error
        if batch:
            yield batch


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""
