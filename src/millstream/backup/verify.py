"""The check of a backup: every chunk and segment is read and compared with its hash.

A deep check also builds the file of a point in a temporary folder, and examines it as `millstream
doctor` does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.backup.chunks import ChunkStore, in_threads, path_of
from millstream.backup.place import BackupPlace
from millstream.backup.point import BackupPoint
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import RestorePlan, build, check_built, choose
from millstream.backup.segments import ChainReader, list_chain
from millstream.engine.row_copy import Heard
from millstream.errors import MillstreamError

Examine = Callable[[Path], list[str]]
"""Examines the file of a store, and returns the damage that it finds."""


class VerifyReport(NamedTuple):
    """The result of a check."""

    points: int
    """Points that were checked, with points that cannot be read."""
    points_damaged: int
    """Points that cannot be restored, or not with every later commit of their chain."""
    chunks: int
    """Sound chunks, with lists of chunks. Points share chunks; a shared chunk is read once."""
    damaged_chunks: list[str]
    """Objects of chunks that are damaged or missing. A run stores a chunk again once it is deleted."""
    segments: int
    bytes: int
    damage: list[str]
    """What cannot be restored, and why; empty if all is sound."""


def verify(
    place: str | os.PathLike[str],
    *,
    at: RestoreMoment | None = None,
    examine: Examine | None = None,
    heard: Heard | None = None,
) -> VerifyReport:
    """Read all chunks of all points, or of the point of a moment, and compare them with their hashes.

    `examine` also examines the built file of the newest of these points.
    """
    source = BackupPlace(place)
    source.require()
    damage = []
    if at is None:
        damage = [stored.damage for stored in source.read_points() if stored.point is None]
    points = source.points() if at is None else [choose(source, at).point]
    unreadable = len(damage)
    check = _ChunkCheck(source)
    damaged_chunks: set[str] = set()
    deleted = 0
    for number, point in enumerate(points):
        if heard is not None:
            heard("verifying points", number, len(points))
        problem, text = check.problem_of(point), "point {} cannot be restored"
        if not problem:
            problem, text = check.problem_behind(point), "behind point {}"
        if problem and source.objects.get(point.name) is None:
            deleted += 1  # a run with --keep has deleted it meanwhile
        elif problem:
            damage.append(f"{text.format(point.seq)}: {problem}")
            damaged_chunks.update(check.damaged_chunks(point))
    points_damaged = len(damage)
    if examine is not None and points and not damage:
        damage += _examined(source, points[-1], examine, heard)
        points_damaged = min(1, len(damage))
    return VerifyReport(
        points=len(points) + unreadable - deleted,
        points_damaged=points_damaged,
        chunks=check.chunks,
        damaged_chunks=sorted(damaged_chunks),
        segments=check.segments,
        bytes=check.bytes,
        damage=damage,
    )


class _ChunkCheck:
    """The chunks that were read, and whether they are sound."""

    def __init__(self, place: BackupPlace) -> None:
        self._place = place
        self._chunks = ChunkStore(place.objects)
        self.sound: dict[str, str] = {}
        """The problem of each chunk, or an empty text."""
        self.segments = self.bytes = 0

    @property
    def chunks(self) -> int:
        """The chunks that were read, and are sound."""
        return sum(not problem for problem in self.sound.values())

    def problem_of(self, point: BackupPoint) -> str:
        """Return the first problem of a point, or an empty text."""
        if problem := self._problem_in(point.lists):
            return problem
        return self._problem_in(list(self._chunks.names_in(point.lists)))

    def damaged_chunks(self, point: BackupPoint) -> list[str]:
        """Return the objects of the damaged chunks of a point that was checked."""
        names = list(point.lists)
        if not self._problem_in(names):
            names += self._chunks.names_in(point.lists)
        return [path_of(name) for name in names if self.sound[name]]

    def _problem_in(self, names: list[str]) -> str:
        """Read chunks that were not read yet, and return the first problem."""
        unread = [name for name in dict.fromkeys(names) if name not in self.sound]
        results = in_threads(self._read, unread, workers=self._place.objects.workers)
        for name, (size, problem) in zip(unread, results, strict=True):
            self.sound[name] = problem
            self.bytes += size
        return next((self.sound[name] for name in names if self.sound[name]), "")

    def problem_behind(self, point: BackupPoint) -> str:
        """Return the first problem of the segments behind a point, or an empty text."""
        reader = ChainReader(self._place.objects, point)
        for segment in list_chain(self._place.objects, point):
            try:
                self.bytes += sum(len(frame.content) for frame in reader.frames(segment))
            except MillstreamError as error:
                return error.message
            self.segments += 1
        return ""

    def _read(self, name: str) -> tuple[int, str]:
        try:
            data, damage = self._chunks.examine(name)
        except MillstreamError as error:
            return 0, error.message
        return len(data), damage and f"the chunk {path_of(name)} {damage}"


def _examined(
    place: BackupPlace, point: BackupPoint, examine: Examine, heard: Heard | None
) -> list[str]:
    """Build the file of a point in a temporary folder, and examine it."""
    with tempfile.TemporaryDirectory(prefix="millstream-verify-") as folder:
        path = Path(folder, "store.db")
        path.touch(0o600)
        plan = RestorePlan(point, list_chain(place.objects, point), None)
        build(place, plan, path, heard or (lambda _stage, _done, _total: None))
        check_built(path, plan, place.text)
        return examine(path)
