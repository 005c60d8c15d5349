"""Where an archive lies: a folder on a disk, or below a prefix of a bucket (`s3://bucket/prefix`).

Both write files as a whole, and are held by one run at a time. Credentials of a bucket come from the
usual environment variables, on each machine that runs tasks.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from millstream.clock import SystemClock
from millstream.engine.place import is_bucket
from millstream.errors import Conflict, Fenced, Locked
from millstream.objects.address import ObjectAddress, parse_address
from millstream.objects.folder import ObjectFolder
from millstream.objects.lease import LEASE_S, LOOK_S, LeaseKeeper, LeaseWatch, ObjectLease, decoded
from millstream.spark.archive.disk_folder import STAGING, DiskFolder, disk_path

REQUESTS_MAX = 16
"""Requests that are under way at a time."""

T = TypeVar("T")
R = TypeVar("R")


class Folder(Protocol):
    """Files by their names; what was written or moved is durable on return."""

    @property
    def text(self) -> str:
        """What `folder_of` makes the same folder from."""
        ...

    def uri(self, name: str) -> str:
        """What other libraries open a file by."""
        ...

    def hold(self, name: str) -> AbstractContextManager[None]:
        """Keep other runs away, by something of that name; `Locked` if another run is there."""
        ...

    def check_held(self) -> None:
        """Refuse to go on if another run has taken over."""
        ...

    def names(self, below: str) -> list[str]:
        """The names of all files below a folder, in order."""
        ...

    def exists(self, below: str) -> bool:
        """Whether there is a folder of that name."""
        ...

    def read(self, name: str) -> bytes:
        """A small file; `FileNotFoundError` if it is missing."""
        ...

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write small files, each as a whole, in the place of what is there."""
        ...

    def create(self, files: Mapping[str, bytes]) -> None:
        """The same for files that must not be there yet."""
        ...

    def draft(self) -> Path:
        """A new path on this machine that a task can write a file to."""
        ...

    def stage(self, draft: Path) -> str:
        """Take a file that was written; its name."""
        ...

    def move(self, moves: Mapping[str, str]) -> None:
        """Give files other names."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; one that is missing is no error."""
        ...

    def clear(self) -> None:
        """Remove what is staged."""
        ...

    def opened(self, name: str) -> Any:
        """What a reader of Parquet takes."""
        ...


def folder_of(path: str | os.PathLike[str]) -> Folder:
    """The folder at a path, or below the address of a bucket."""
    text = os.fspath(path)
    if is_bucket(text) and not text.lower().startswith("file:"):
        return BucketFolder(parse_address(text))
    return DiskFolder(disk_path(path))


class BucketFolder:
    """The objects below a prefix."""

    def __init__(self, address: ObjectAddress) -> None:
        self.address = address
        self.text = address.text
        self._objects = ObjectFolder(address)
        self._keeper: LeaseKeeper | None = None

    def uri(self, name: str) -> str:
        """What other libraries open a file by."""
        return f"{self.text}/{name}"

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the folder by a lease; one whose run has died is free after a few seconds."""
        where = self.address._replace(prefix=f"{self.address.prefix}/{name}")
        lease = ObjectLease(ObjectFolder(where), secrets.token_hex(8))
        self._take(lease)
        self._keeper = keeper = LeaseKeeper(
            lease, place=self.text, is_fenced=lambda: False, on_lost=lambda _: None
        )
        try:
            yield
        finally:
            self._keeper = None
            keeper.close()

    def _take(self, lease: ObjectLease) -> None:
        clock, watch = SystemClock(), LeaseWatch()
        began, first = clock.seconds(), lease.look()
        found = first
        while not (watch.is_free(found, clock.seconds()) and lease.take(found)):
            found = lease.look()
            if _beats(found) != _beats(first) or clock.seconds() - began > 2 * LEASE_S:
                raise Locked(
                    f"another run writes to the archive {self.text}; wait until it has ended"
                )
            threading.Event().wait(LOOK_S / 4)

    def check_held(self) -> None:
        """Refuse to go on if another run has taken over."""
        try:
            if self._keeper is not None:
                self._keeper.check()
        except Fenced:
            raise Locked(
                f"another run has taken over the archive {self.text}; run this one again"
            ) from None

    def names(self, below: str) -> list[str]:
        """The names of all objects below a folder, in order."""
        return sorted(one.name for one in self._objects.list(below))

    def exists(self, below: str) -> bool:
        """Whether there is an object below a folder."""
        return any(True for _ in self._objects.list(below))

    def read(self, name: str) -> bytes:
        """A small object."""
        found = self._objects.get(name)
        if found is None:
            raise FileNotFoundError(self.uri(name))
        return found.data

    def write(self, files: Mapping[str, bytes]) -> None:
        """Put small objects, in the place of what is there."""
        _at_once(lambda one: self._objects.put(*one), files.items())

    def create(self, files: Mapping[str, bytes]) -> None:
        """Put small objects that must not be there yet; the store itself compares."""

        def put(one: tuple[str, bytes]) -> None:
            if self._objects.create(*one) is None and self.read(one[0]) != one[1]:  # a lost answer
                raise Conflict(f"{self.uri(one[0])} was written by another run meanwhile")

        _at_once(put, files.items())

    def draft(self) -> Path:
        """A new path in this machine's directory for temporary files."""
        descriptor, name = tempfile.mkstemp(prefix="millstream-archive-", suffix=".parquet")
        os.close(descriptor)
        return Path(name)

    def stage(self, draft: Path) -> str:
        """Upload a file and remove it here; its name."""
        name = f"{STAGING}/{secrets.token_hex(12)}.parquet"
        try:
            self._objects.upload(name, draft)
        finally:
            draft.unlink(missing_ok=True)
        return name

    def move(self, moves: Mapping[str, str]) -> None:
        """Copy objects inside the store, and remove the first ones."""
        _at_once(lambda one: self._objects.rename(*one), moves.items())

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; one that is missing is no error."""
        _at_once(self._objects.delete, names)

    def clear(self) -> None:
        """Remove what is staged."""
        self.remove(self.names(STAGING))

    def opened(self, name: str) -> Any:
        """A file that fetches what is read of it."""
        import pyarrow as pa

        return pa.PythonFile(self._objects.open(name), mode="r")


def _beats(found: Any) -> object:
    return None if found is None or not decoded(found.data).holder else found.tag


def _at_once(work: Callable[[T], R], some: Iterable[T]) -> None:
    """Do something with each, several at a time."""
    with ThreadPoolExecutor(REQUESTS_MAX) as pool:
        for _ in pool.map(work, some):
            pass
