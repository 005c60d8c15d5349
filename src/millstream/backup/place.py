"""The place of a backup: a folder or a bucket that holds the backup of one store, and nothing else.

    millstream-backup.json    what the place is, and the id of its store
    lock, lease               which run may write: a lock of the system, or a lease in a bucket
    points/…                  one object per point
    chunks/…                  pieces of the store's file

One run writes at a time. So no run deletes chunks that another run has found and counts on.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from millstream.backup import point as points
from millstream.backup.objects import PARTIAL, BackupObjects, BucketObjects, FolderObjects
from millstream.backup.point import BackupPoint
from millstream.clock import Clock
from millstream.engine.place import is_address, is_bucket
from millstream.errors import CannotOpen, CorruptionError, Fenced, InvalidInput, Overloaded
from millstream.objects.address import parse_address
from millstream.objects.lease import LEASE_S, LOOK_S, LeaseKeeper, LeaseWatch, ObjectLease
from millstream.objects.lease import NAME as LEASE

MARK = "millstream-backup.json"
LOCK = "lock"
KIND = "millstream-backup"

Check = Callable[[], None]
"""Raises `Fenced` if another run has taken the place."""


class PlaceMark(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a place, and its store."""

    kind: str
    version: int
    store: str


class StoredPoint(NamedTuple):
    """The object of a point."""

    name: str
    point: BackupPoint | None
    """None if the point is damaged."""
    damage: str


def in_order(stored: Iterable[StoredPoint]) -> list[BackupPoint]:
    """Return the readable points in the order in which they were added."""
    readable = [one.point for one in stored if one.point is not None]
    return sorted(readable, key=lambda point: point.number)


class BackupPlace:
    """A place that holds a backup, or may hold one."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Name a place; nothing is read or written yet."""
        text = os.fspath(place)
        if is_address(text):
            raise InvalidInput(
                f"{text}: a backup lies in a folder or a bucket, not behind a server"
            )
        if is_bucket(text) and not text.lower().startswith("file:"):
            self.folder: Path | None = None
            self.objects: BackupObjects = BucketObjects(parse_address(text))
        else:
            path = unquote(text[len("file://") :]) if is_bucket(text) else text
            self.folder = Path(os.path.realpath(path))
            self.objects = FolderObjects(self.folder)
        self.text = text

    def check(self, store: str) -> bool:
        """Refuse a place that cannot hold a store's backup; return True if the place has one.

        Raises `CannotOpen` for a folder with foreign files, and for the backup of another store.
        """
        mark = self._mark()
        if mark is None:
            self._refuse_foreign()
            return False
        if mark.store != store:
            raise CannotOpen(
                f"{self.text} holds the backup of another store ({mark.store}), and this store is "
                f"{store}: name an empty folder; nothing was changed",
                path=self.text,
            )
        return True

    def claim(self, store: str) -> None:
        """Make the place that of a store's backup; the caller holds the lock."""
        if not self.check(store):
            mark = PlaceMark(kind=KIND, version=points.VERSION, store=store)
            self.objects.put(MARK, msgspec.json.encode(mark))
            self.objects.sync()

    def require(self) -> PlaceMark:
        """Return what the place is. Raises `CannotOpen` if it holds no backup."""
        mark = self._mark()
        if mark is None:
            raise CannotOpen(
                f"there is no backup at {self.text}: `millstream backup STORE {self.text}` makes one",
                path=self.text,
            )
        return mark

    def _mark(self) -> PlaceMark | None:
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise CannotOpen(
                f"{self.text} is a file, and a backup lies in a folder; "
                f"`millstream restore - STORE < {self.text}` restores a backup that was written to -",
                path=self.text,
            )
        data = self.objects.get(MARK)
        if data is None:
            return None
        try:
            mark = msgspec.json.decode(data, type=PlaceMark)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{self.text}/{MARK} is not as it was written ({error}); bring it back from a copy of the "
                "backup",
                what="mark",
                where=self.text,
            ) from error
        if mark.kind != KIND or mark.version > points.VERSION:
            raise CannotOpen(
                f"{self.text} holds a backup of version {mark.version}, and this Millstream reads up "
                f"to {points.VERSION}: install a newer version",
                path=self.text,
            )
        return mark

    def _refuse_foreign(self) -> None:
        """Refuse a place with objects of others; a killed run may have left a lock and a partial mark."""
        for name in self.objects.names(""):
            if name not in (LOCK, LEASE):
                raise CannotOpen(
                    f"{self.text} has other files ({name}) and no backup: name an empty folder; "
                    "nothing was changed",
                    path=self.text,
                )
        if self.folder is not None and self.folder.is_dir():
            for entry in os.scandir(self.folder):
                if entry.name != LOCK and not entry.name.endswith(PARTIAL):
                    raise CannotOpen(
                        f"{self.text} is not empty ({entry.name}) and no backup: name an empty "
                        "folder; nothing was changed",
                        path=self.text,
                    )

    def points(self) -> list[BackupPoint]:
        """Return all readable points, in the order in which they were added."""
        return in_order(self.read_points())

    def read_points(self) -> Iterator[StoredPoint]:
        """Yield all points by time."""
        for name in sorted(filter(points.NAME.fullmatch, self.objects.names(points.FOLDER))):
            data = self.objects.get(name)
            if data is None:
                continue  # a run with --keep has deleted it meanwhile
            try:
                yield StoredPoint(name, points.decode(data, f"{self.text}/{name}"), "")
            except CorruptionError as error:
                yield StoredPoint(name, None, error.message)

    @contextmanager
    def locked(self, clock: Clock) -> Iterator[Check]:
        """Let no other run write to the place; yields a check that the place is still ours.

        Raises `Overloaded` if another run writes now.
        """
        if isinstance(self.objects, BucketObjects):
            with self._leased(self.objects, clock) as check:
                yield check
            return
        assert self.folder is not None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotOpen(
                f"{self.text} cannot be made: {error.strerror or error}", path=self.text
            ) from error
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise self._busy() from error
            self.objects.clean()
            yield lambda: None
        finally:
            os.close(descriptor)

    @contextmanager
    def _leased(self, objects: BucketObjects, clock: Clock) -> Iterator[Check]:
        """Hold a lease; a lease whose holder was killed is free after a few seconds."""
        lease = ObjectLease(objects.objects, secrets.token_hex(8))
        watch = LeaseWatch()
        until_s = clock.seconds() + LEASE_S + 2 * LOOK_S
        while True:
            stored = lease.look()
            if watch.is_free(stored, clock.seconds()) and lease.take(stored):
                break
            if clock.seconds() >= until_s:
                raise self._busy()
            threading.Event().wait(LOOK_S)
        lost: list[str] = []
        keeper = LeaseKeeper(
            lease, place=self.text, is_fenced=lambda: False, on_lost=lambda loss: lost.append(loss)
        )
        try:

            def check() -> None:
                if lost:
                    raise Fenced(
                        f"another run has taken {self.text} meanwhile: this one ends without a point",
                        path=self.text,
                    )
                keeper.check()

            yield check
        finally:
            keeper.close()

    def _busy(self) -> Overloaded:
        return Overloaded(
            f"another run writes to {self.text} now: wait until it has ended; nothing was changed",
            path=self.text,
        )
