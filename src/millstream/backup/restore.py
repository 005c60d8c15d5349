"""A restore: a store's file is built from a point under a temporary name, and checked.

Every chunk is compared with its hash. The file is then opened as a store, and must be the store and the
commit that the point names. Only a complete and checked file gets the name. An existing file is
replaced only if the caller asks for it and no process has it open, and is kept under another name.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from millstream.backup.chunks import ChunkStore, in_threads
from millstream.backup.place import BackupPlace, StoredPoint, in_order
from millstream.backup.point import BackupPoint
from millstream.backup.replay import RestoreMoment, replay
from millstream.backup.segments import SegmentName, list_chain
from millstream.backup.source import newest_delta, store_id
from millstream.backup.stream import read_file, read_point
from millstream.engine.disk import full, sync_folder
from millstream.engine.open import open_engine
from millstream.engine.place import IN_MEMORY, check_file, is_address, is_bucket
from millstream.engine.row_copy import Heard
from millstream.engine.sqlite.file import inspect
from millstream.engine.sqlite.replace import refuse_open, replace_file
from millstream.engine.sqlite.unfinished_file import has_log, name_new_file, partial_file
from millstream.errors import CannotOpen, CorruptionError, DiskFull, InvalidInput
from millstream.limits import KiB
from millstream.record import moment

SUFFIX = ".restoring"
"""Suffix of the name of an incomplete file."""

OPENING_BYTES = 64 * KiB
"""Free space beside the file: opening it creates the index of its write-ahead log, of 32 KiB."""

CHUNKS_AT_ONCE = 4


class RestoreReport(NamedTuple):
    """The result of a restore."""

    point: BackupPoint
    seq: int
    committed_ms: int
    bytes: int
    aside: Path | None
    """The new name of the replaced file."""


def restore(
    place: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    at: RestoreMoment | None = None,
    replace: bool = False,
    heard: Heard | None = None,
) -> RestoreReport:
    """Build a store's file from a backup; by default from its newest point."""
    source = BackupPlace(place)
    source.require()
    shown = _target(store)
    check_target(shown, replace=replace)
    plan = choose(source, at)

    def build_file(path: Path, heard: Heard) -> None:
        build(source, plan, path, heard)

    return _install(shown, plan, build_file, text=source.text, replace=replace, heard=heard)


def restore_stream(
    stream: BinaryIO,
    store: str | os.PathLike[str],
    *,
    replace: bool = False,
    heard: Heard | None = None,
) -> RestoreReport:
    """Build a store's file from the stream of a backup."""
    shown = _target(store)
    check_target(shown, replace=replace)
    point = read_point(stream)

    def build_file(path: Path, heard: Heard) -> None:
        read_file(stream, point, path, heard)

    plan = RestorePlan(point, [], None)
    return _install(shown, plan, build_file, text="-", replace=replace, heard=heard)


def _install(
    shown: Path,
    plan: RestorePlan,
    build_file: Callable[[Path, Heard], None],
    *,
    text: str,
    replace: bool,
    heard: Heard | None,
) -> RestoreReport:
    """Build and check a file beside its target, and give it the name of the target."""
    target = Path(os.path.realpath(shown))
    with partial_file(target, SUFFIX, shown=shown, work="restore") as partial:
        _check_space(target, plan.point)
        try:
            build_file(partial, heard or _quiet)
        except OSError as error:
            raise _failed(error, shown) from error
        seq, committed_ms = check_built(partial, plan, text)
        aside = None
        if replace and target.exists() and target.stat().st_size:
            aside = replace_file(partial, target, shown=shown)
        else:
            name_new_file(partial, target, shown=shown)
        sync_folder(target)
    return RestoreReport(plan.point, seq, committed_ms, target.stat().st_size, aside)


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _target(store: str | os.PathLike[str]) -> Path:
    name = os.fspath(store)
    if is_bucket(name) or is_address(name) or name == IN_MEMORY:
        raise InvalidInput(
            f"{name}: a backup is restored to a file; `millstream copy FILE s3://…` then copies it "
            "to a bucket"
        )
    check_file(name)
    return Path(name).absolute()


def check_target(shown: Path, *, replace: bool) -> None:
    """Refuse a target that exists, before any byte is written; a damaged store may be replaced."""
    target = Path(os.path.realpath(shown))
    if not target.parent.is_dir():
        raise CannotOpen(
            f"{shown}: the directory {target.parent} does not exist; create it first",
            path=str(shown),
        )
    if target.is_dir():
        raise CannotOpen(f"{shown} is a directory; name a file in it", path=str(shown))
    if not target.exists() or not target.stat().st_size:
        if has_log(target):
            raise CannotOpen(
                f"{shown}-wal is there without its store, and would spoil the restored store: move it "
                "away",
                path=str(shown),
            )
        return
    if not replace:
        raise CannotOpen(
            f"{shown} is there already, and was left as it is: restore to another name, or replace it "
            "(--replace), which keeps it under another name",
            path=str(shown),
        )
    try:
        inspect(target)  # only a store is replaced
    except CorruptionError:
        pass  # the usual reason for a restore
    refuse_open(target, shown=shown)


class RestorePlan(NamedTuple):
    """A point, and the segments of its chain that lead to the wanted commit."""

    point: BackupPoint
    segments: list[SegmentName]
    at: RestoreMoment | None

    @property
    def seq(self) -> int | None:
        """The sequence of the wanted commit; None for a time."""
        if self.at is None:
            return self.segments[-1].seq if self.segments else self.point.seq
        return self.at.seq


def choose(place: BackupPlace, at: RestoreMoment | None) -> RestorePlan:
    """Return the way to a moment. Raises `InvalidInput` with the nearest commits if there is none.

    A restored store that is backed up to the same place has other commits under numbers that the place has
    already. Then the point that was added last counts.
    """
    stored = list(place.read_points())
    points = in_order(stored)
    _need_point(place, points)
    if at is None:
        plan = _plan_for_newest(place, points)
    elif at.time_ms is not None:
        plan = _plan_for_time(place, points, at.time_ms)
    else:
        assert at.seq is not None
        return _plan_for_seq(place, points, at.seq)
    _refuse_damage(stored, plan)
    return plan


def choose_readable(place: BackupPlace) -> RestorePlan:
    """Return the way to the newest commit of the last point that can be read."""
    points = place.points()
    _need_point(place, points)
    return _plan_for_newest(place, points)


def _plan_for_newest(place: BackupPlace, points: list[BackupPoint]) -> RestorePlan:
    return RestorePlan(points[-1], list_chain(place.objects, points[-1]), None)


def _need_point(place: BackupPlace, points: list[BackupPoint]) -> None:
    if not points:
        raise CannotOpen(f"{place.text} has no complete point yet", path=place.text)


def _plan_for_time(place: BackupPlace, points: list[BackupPoint], time_ms: int) -> RestorePlan:
    """Return the way to the newest commit at a time."""
    at = RestoreMoment(time_ms=time_ms)
    plans: list[tuple[int, int, RestorePlan]] = []
    for number, point in enumerate(points):
        if point.committed_ms <= time_ms:
            chain = list_chain(place.objects, point)
            before = [segment for segment in chain if segment.committed_ms <= time_ms]
            newest_ms = before[-1].committed_ms if before else point.committed_ms
            plans.append((newest_ms, number, RestorePlan(point, chain[: len(before) + 1], at)))
    if not plans:
        raise _begins_later(place, points)
    return max(plans)[2]


def _plan_for_seq(place: BackupPlace, points: list[BackupPoint], seq: int) -> RestorePlan:
    """Return the way to a commit."""
    earlier = []
    for point in reversed(points):
        if point.seq == seq:
            return RestorePlan(point, [], RestoreMoment(seq=seq))
        if point.seq < seq:
            chain = list_chain(place.objects, point)
            before = [segment for segment in chain if segment.seq < seq]
            if len(before) < len(chain):
                return RestorePlan(point, chain[: len(before) + 1], RestoreMoment(seq=seq))
            earlier.append(chain[-1].seq if chain else point.seq)
    if not earlier:
        raise _begins_later(place, points)
    nearest = f"the nearest earlier commit is {max(earlier)}"
    later = [point.seq for point in points if point.seq > seq]
    if later:
        nearest += f", the nearest later commit is {min(later)}"
    raise InvalidInput(
        f"{place.text} cannot restore commit {seq}: {nearest}; `millstream backup list {place.text}` "
        "lists what it can restore"
    )


def _begins_later(place: BackupPlace, points: list[BackupPoint]) -> InvalidInput:
    first = min(points, key=lambda point: point.seq)
    return InvalidInput(
        f"{place.text} begins later: its first commit is {first.seq}, of "
        f"{_shown(first.committed_ms)}"
    )


def _refuse_damage(stored: list[StoredPoint], plan: RestorePlan) -> None:
    """Refuse a plan if the next point is damaged: it may have a newer commit for the wanted moment."""
    newest = plan.segments[-1] if plan.segments else plan.point
    if plan.at is not None and newest.committed_ms > (plan.at.time_ms or 0):
        return  # the backup has all commits up to that time
    later = [one for one in stored if one.name > plan.point.name]
    if later and later[0].point is None:
        raise CorruptionError(
            f"{later[0].damage}; --at {newest.seq} restores the newest commit before it",
            what="point",
            where=later[0].name,
        )


def _shown(time_ms: int) -> str:
    return f"{moment(time_ms).isoformat(sep=' ', timespec='milliseconds')}"


def build(place: BackupPlace, plan: RestorePlan, path: Path, heard: Heard) -> None:
    """Write the file of a plan, and sync it; every chunk and segment is compared with its hash."""
    _build_point(place, plan.point, path, heard)
    if plan.segments:
        replay(path, place.objects, plan.point, plan.segments, at=plan.at, heard=heard)


def _build_point(place: BackupPlace, point: BackupPoint, path: Path, heard: Heard) -> None:
    chunks = ChunkStore(place.objects)
    names = list(chunks.names_in(point.lists))
    total = -(-point.file_bytes // point.chunk_bytes)
    if len(names) != total:
        raise CorruptionError(
            f"{place.text}/{point.name} lists {len(names):,} chunks, and its file has {total:,}; "
            "restore another point (--at)",
            what="point",
            where=point.name,
        )
    descriptor = os.open(path, os.O_WRONLY)
    try:

        def write(batch: tuple[int, list[str]]) -> int:
            first, batch_names = batch
            for number, name in enumerate(batch_names, start=first):
                _write_at(descriptor, chunks.get(name), number * point.chunk_bytes)
            return first + len(batch_names)

        for done in in_threads(write, _batches(names), workers=place.objects.workers):
            heard("restoring", done, total)
        if os.fstat(descriptor).st_size != point.file_bytes:
            raise CorruptionError(
                f"{place.text}/{point.name} does not give a file of its size; restore another point (--at)",
                what="point",
                where=point.name,
            )
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _batches(names: list[str]) -> Iterator[tuple[int, list[str]]]:
    for first in range(0, len(names), CHUNKS_AT_ONCE):
        yield first, names[first : first + CHUNKS_AT_ONCE]


def _write_at(descriptor: int, data: bytes, start: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, start)
        view, start = view[written:], start + written


def check_built(path: Path, plan: RestorePlan, text: str) -> tuple[int, int]:
    """Open a built file as a store; return the sequence and time of its newest commit."""
    engine = open_engine(path, mode="r")
    try:
        with engine.read() as snapshot:
            newest, store = newest_delta(snapshot), store_id(snapshot)
    finally:
        engine.close()
    expected = newest.seq if plan.seq is None else plan.seq
    if (newest.seq, store) != (expected, plan.point.store):
        raise CorruptionError(
            f"{text}/{plan.point.name} gives commit {newest.seq} of the store {store}, and it should "
            f"give commit {expected} of {plan.point.store}; restore another commit (--at)",
            what="point",
            where=plan.point.name,
        )
    return newest.seq, newest.wall_ms


def _check_space(target: Path, point: BackupPoint) -> None:
    free_bytes = shutil.disk_usage(target.parent).free
    needed_bytes = point.file_bytes + OPENING_BYTES
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"the disk of {target.parent} has {free_bytes:,} bytes free, and the store needs "
            f"{needed_bytes:,}: free space on the disk, or restore to another disk; nothing was "
            "changed",
            path=str(target.parent),
            free_bytes=free_bytes,
        )


def _failed(error: OSError, shown: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the restore to {shown} broke off: the disk is full, and what was written is removed "
            "again. Free space on the disk, and restore once more",
            **full(shown.parent, str(error)).data,
        )
    return CannotOpen(
        f"{shown} could not be written: {error.strerror or error}; nothing was changed",
        path=str(shown),
    )
