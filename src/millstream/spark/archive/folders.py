"""The folder of an archive: on a disk, or below a prefix of a bucket (`s3://bucket/prefix`).

Either folder writes files as a whole, and one run at a time holds it. The usual environment
variables give the credentials of a bucket, on each machine that runs tasks.
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
"""The most requests at a time."""

T = TypeVar("T")
R = TypeVar("R")


class Folder(Protocol):
    """Files by name; written and moved files are durable on return."""

    @property
    def text(self) -> str:
        """Return the text from which `folder_of` builds the same folder."""
        ...

    def uri(self, name: str) -> str:
        """Return the address of a file for other libraries."""
        ...

    def hold(self, name: str) -> AbstractContextManager[None]:
        """Lock the folder under a name; raise `Locked` if another run holds the lock."""
        ...

    def check_held(self) -> None:
        """Raise `Locked` if another run has taken over."""
        ...

    def names(self, below: str) -> list[str]:
        """Return the names of all files below a folder, in order."""
        ...

    def exists(self, below: str) -> bool:
        """Return whether a folder exists."""
        ...

    def read(self, name: str) -> bytes:
        """Read a small file; raise `FileNotFoundError` if it is missing."""
        ...

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write small files, each as a whole; replace existing files."""
        ...

    def create(self, files: Mapping[str, bytes]) -> None:
        """Write small files, each as a whole; raise `Conflict` if a file exists."""
        ...

    def draft(self) -> Path:
        """Return a new path on this machine, to which a task can write a file."""
        ...

    def stage(self, draft: Path) -> str:
        """Take a written file; return its name."""
        ...

    def move(self, moves: Mapping[str, str]) -> None:
        """Rename files."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; ignore missing files."""
        ...

    def clear(self) -> None:
        """Remove the staged files."""
        ...

    def opened(self, name: str) -> Any:
        """Open a file for a reader of Parquet."""
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
        """Return the address of a file for other libraries."""
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
        note = first
        while not (watch.is_free(note, clock.seconds()) and lease.take(note)):
            note = lease.look()
            if _beats(note) != _beats(first) or clock.seconds() - began > 2 * LEASE_S:
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
        return sorted(listed.name for listed in self._objects.list(below))

    def exists(self, below: str) -> bool:
        """Whether there is an object below a folder."""
        return any(True for _ in self._objects.list(below))

    def read(self, name: str) -> bytes:
        """A small object."""
        stored = self._objects.get(name)
        if stored is None:
            raise FileNotFoundError(self.uri(name))
        return stored.data

    def write(self, files: Mapping[str, bytes]) -> None:
        """Put small objects, in the place of what is there."""
        _at_once(lambda file: self._objects.put(*file), files.items())

    def create(self, files: Mapping[str, bytes]) -> None:
        """Put small objects that must not be there yet; the store itself compares."""

        def put(file: tuple[str, bytes]) -> None:
            if (
                self._objects.create(*file) is None and self.read(file[0]) != file[1]
            ):  # a lost answer
                raise Conflict(f"{self.uri(file[0])} was written by another run meanwhile")

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
        _at_once(lambda move: self._objects.rename(*move), moves.items())

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; ignore missing objects."""
        _at_once(self._objects.delete, names)

    def clear(self) -> None:
        """Remove the staged objects."""
        self.remove(self.names(STAGING))

    def opened(self, name: str) -> Any:
        """Return a file that fetches only the ranges that are read."""
        import pyarrow as pa

        return pa.PythonFile(self._objects.open(name), mode="r")


def _beats(note: Any) -> object:
    return None if note is None or not decoded(note.data).holder else note.tag


def _at_once(work: Callable[[T], R], items: Iterable[T]) -> None:
    """Call `work` with each item, several at a time."""
    with ThreadPoolExecutor(REQUESTS_MAX) as pool:
        for _ in pool.map(work, items):
            pass
