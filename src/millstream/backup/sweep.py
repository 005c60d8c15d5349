"""The deletion of old points of a backup, with their segments and chunks.

Points are deleted first, then the segments behind them, then the chunks that no point needs. A kill
in between leaves chunks that the next run with a retention deletes.
"""

from __future__ import annotations

from millstream.backup import chunks as chunk_objects
from millstream.backup import segments
from millstream.backup.chunks import ChunkStore
from millstream.backup.keep import Keep, kept
from millstream.backup.place import BackupPlace, Check, in_order
from millstream.backup.point import BackupPoint


def sweep(place: BackupPlace, keep: Keep, *, now_ms: int, check: Check) -> int:
    """Delete old points and the chunks that no point needs; return the number of deleted points.

    The caller holds the lock of the place. A damaged point stops the deletion of chunks, because
    nobody knows which chunks it needs.
    """
    stored = list(place.read_points())
    points = in_order(stored)
    remaining = kept(points, keep, now_ms)
    old = [point for point in points if point not in remaining]
    for point in old:
        place.objects.delete(point.name)
    place.objects.sync()
    if old and len(points) == len(stored):
        _drop_segments(place, remaining)
        _drop_chunks(place, remaining, check)
    return len(old)


def _drop_segments(place: BackupPlace, points: list[BackupPoint]) -> None:
    """Delete the segments of deleted points."""
    needed = {segments.chain_folder(point) for point in points}
    for name in list(place.objects.names(segments.FOLDER)):
        if name.rpartition("/")[0] not in needed:
            place.objects.delete(name)


def _drop_chunks(place: BackupPlace, points: list[BackupPoint], check: Check) -> None:
    chunks = ChunkStore(place.objects)
    needed: set[str] = set()
    for point in points:
        unread = [name for name in point.lists if name not in needed]
        needed.update(unread)
        needed.update(chunks.names_in(unread))
    check()
    for name in list(place.objects.names(chunk_objects.FOLDER)):
        if name.rpartition("/")[2] not in needed:
            place.objects.delete(name)
