"""The retention of a backup: the deletion of old points and their chunks.

Points are deleted first, then the segments behind them, then the chunks that no point needs. A kill in between leaves chunks that the
next run with a retention deletes. The newest point is never deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from millstream.backup import chunks as chunk_objects
from millstream.backup import segments
from millstream.backup.chunks import ChunkStore
from millstream.backup.place import BackupPlace, Check
from millstream.backup.point import BackupPoint
from millstream.errors import InvalidInput

_AGE = re.compile(r"([0-9]+)\s*(s|m|h|d|w)")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


class Keep(NamedTuple):
    """Points to keep: a number of newest points, and all points younger than `age_ms`."""

    newest: int = 0
    age_ms: int = 0


def parse_keep(text: str) -> Keep:
    """Parse a number of points, such as 30, or an age, such as 7d."""
    if text.isascii() and text.isdecimal() and int(text):
        return Keep(newest=int(text))
    match = _AGE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise InvalidInput(
            f"keep is a number of points such as 30, or an age such as 7d; not {text!r}"
        )
    return Keep(age_ms=int(match[1]) * _UNIT_MS[match[2]])


def kept(points: Sequence[BackupPoint], keep: Keep, now_ms: int) -> list[BackupPoint]:
    """Return the points to keep, from points by time."""
    newest_count = max(1, keep.newest)
    return [
        point
        for number, point in enumerate(points, start=1)
        if number > len(points) - newest_count
        or (keep.age_ms and point.taken_ms >= now_ms - keep.age_ms)
    ]


def sweep(place: BackupPlace, keep: Keep, *, now_ms: int, check: Check) -> int:
    """Delete old points and the chunks that no point needs; return the number of deleted points.

    The caller holds the lock of the place. A damaged point stops the deletion of chunks, because
    nobody knows which chunks it needs.
    """
    listed = list(place.read_points())
    points = [point for point, _ in listed if point is not None]
    remaining = kept(points, keep, now_ms)
    old = [point for point in points if point not in remaining]
    for point in old:
        place.objects.delete(point.name)
    place.objects.sync()
    if old and len(points) == len(listed):
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
