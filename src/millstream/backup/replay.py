"""The replay of a chain: commits after a point are written into the point's file, up to one commit.

The frames of a commit are whole pages, so a replay writes them to their places. Only the last segment can
hold the wanted commit. After each of its commits the replay opens the file and reads its newest commit.
A commit that goes beyond the wanted time is undone: its pages were kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from millstream.backup.objects import BackupObjects
from millstream.backup.point import BackupPoint
from millstream.backup.segments import ChainReader, Frame, SegmentName
from millstream.backup.source import newest_delta
from millstream.engine.row_copy import Heard
from millstream.engine.sqlite.page_snapshot import with_checksum
from millstream.engine.sqlite.rows import SqliteReader


class RestoreMoment(NamedTuple):
    """The commit to restore: by its sequence, or the newest commit at a time."""

    seq: int | None = None
    time_ms: int | None = None


def replay(
    path: Path,
    objects: BackupObjects,
    point: BackupPoint,
    segments: list[SegmentName],
    *,
    at: RestoreMoment | None,
    heard: Heard,
) -> None:
    """Write the commits of segments into the file of their point, and sync it.

    With `at`, the replay stops in the last segment: at the commit with a sequence, or before the first
    commit that is later than a time.
    """
    chain = ChainReader(objects, point)
    pages = _Pages(path, point)
    try:
        for number, segment in enumerate(segments, start=1):
            is_last = number == len(segments)
            commit: list[Frame] = []
            for frame in chain.frames(segment):
                commit.append(frame)
                if not frame.pages:
                    continue
                if at is not None and is_last:
                    if _is_reached(pages, commit, at):
                        break
                else:
                    pages.write(commit)
                commit = []
            heard("replaying", number, len(segments))
        pages.sync()
    finally:
        pages.close()


def _is_reached(pages: _Pages, commit: list[Frame], at: RestoreMoment) -> bool:
    """Write a commit, unless it is later than the wanted time; True if the replay must stop."""
    undone = pages.kept(commit)
    pages.write(commit)
    seq, wall_ms = pages.newest()
    if at.time_ms is not None and wall_ms > at.time_ms:
        pages.write(undone)
        return True
    return at.seq is not None and seq >= at.seq


class _Pages:
    """The pages of a file that no connection has open."""

    def __init__(self, path: Path, point: BackupPoint) -> None:
        self._path, self._bytes = path, point.page_bytes
        self._has_checksums = point.has_checksums
        self._descriptor = os.open(path, os.O_RDWR)

    def write(self, commit: list[Frame]) -> None:
        """Write the pages of a commit, and set the size of the file."""
        for page, _, content in commit:
            data = with_checksum(content) if self._has_checksums else content
            os.pwrite(self._descriptor, data, (page - 1) * self._bytes)
        os.ftruncate(self._descriptor, commit[-1].pages * self._bytes)

    def kept(self, commit: list[Frame]) -> list[Frame]:
        """Return the present content of the pages that a commit writes or cuts off, as a commit that
        undoes it.
        """
        count = os.fstat(self._descriptor).st_size // self._bytes
        written = {frame.page for frame in commit if frame.page <= count}
        numbers = sorted({1, *written, *range(commit[-1].pages + 1, count + 1)})
        return [
            Frame(
                number, count, os.pread(self._descriptor, self._bytes, (number - 1) * self._bytes)
            )
            for number in numbers
        ]

    def newest(self) -> tuple[int, int]:
        """Return the sequence and the wall time of the newest commit in the file."""
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        name = f"file:{quote(str(self._path))}?immutable=1"
        connection = apsw.Connection(name, flags=flags)
        try:
            newest = newest_delta(SqliteReader(connection))
        finally:
            connection.close()
        return newest.seq, newest.wall_ms

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
