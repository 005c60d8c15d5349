"""A backup run: it adds a point to a place, and deletes points that are too old.

The run reads every page of one snapshot beside running commits, and stores the chunks that the place
lacks. The point is written last. So a killed run has added nothing but chunks, which the next run
finds again.

The first run, and one run per day, compare the checksums of all rows before they add a point: a damaged
store would otherwise be backed up as it is. `BackupPoint.checked_ms` tells when that was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from millstream.backup import point as points
from millstream.backup.chunks import CHUNK_BYTES, ChunkStore, in_threads
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace, Check
from millstream.backup.point import BackupPoint
from millstream.backup.source import BackupSource, open_source, refuse_overlap
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
    opening: AbstractContextManager[BackupSource],
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
            place.claim(source.store)
            return store_point(
                place, source, check, keep=keep, compress=compress, heard=heard, clock=clock
            )


def store_point(
    place: BackupPlace,
    source: BackupSource,
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
            f"the backup to {place.text} broke off: its disk is full, and there is no new point. "
            "Free space on the disk, and run it again: it goes on with what is there",
            **error.data,
        ) from error
    deleted = 0 if keep is None else sweep(place, keep, now_ms=clock.wall_ms(), check=check)
    return BackupReport(point, count, chunks.stored_chunks, chunks.stored_bytes, deleted)


def _store(
    place: BackupPlace, source: BackupSource, chunks: ChunkStore, *, heard: Heard, clock: Clock
) -> tuple[BackupPoint, int]:
    """Store the chunks that the place lacks; return the point, which is not written yet."""
    now_ms = clock.wall_ms()
    checks = [point.checked_ms for point in place.points()]
    checked_ms = max(checks, default=0)
    if source.verify is not None and (not checks or now_ms - checked_ms >= CHECK_MS):
        heard("checking", 0, 0)
        source.verify(lambda: False)
        checked_ms = now_ms
    chunks.look()
    names: list[str] = []
    total = -(-source.file.pages * source.file.page_bytes // CHUNK_BYTES)

    def put_all(pieces: list[bytes]) -> list[str]:
        return [chunks.put(piece) for piece in pieces]

    for stored in in_threads(put_all, _pieces(source), workers=place.objects.workers):
        names += stored
        heard("storing", len(names), total)
    lists = chunks.put_lists(names)
    point = BackupPoint(
        store=source.store,
        seq=source.seq,
        committed_ms=source.committed_ms,
        taken_ms=now_ms,
        checked_ms=checked_ms,
        page_bytes=source.file.page_bytes,
        pages=source.file.pages,
        has_checksums=source.file.has_checksums,
        lists=lists,
        wal_header=source.position.header.hex(),
        wal_frames=source.position.frames,
    )
    return point, len(names) + len(lists)


def _pieces(source: BackupSource) -> Iterator[list[bytes]]:
    """Yield the file in order, as lists of chunks."""
    file = source.file
    pages_per_chunk = CHUNK_BYTES // file.page_bytes
    pieces: list[bytes] = []
    for first in range(1, file.pages + 1, pages_per_chunk):
        pieces.append(file.read(first, min(pages_per_chunk, file.pages - first + 1)))
        if len(pieces) == CHUNKS_AT_ONCE:
            yield pieces
            pieces = []
    if pieces:
        yield pieces


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""
