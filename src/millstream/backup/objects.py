"""The objects of a backup: named bytes in a folder, or below a prefix of a bucket.

An object appears with its whole content or not at all, and is durable when `put` returns. A kill in
the middle leaves a partial file, whose name ends in `PARTIAL`. Readers ignore partial files.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from millstream.engine.disk import full
from millstream.errors import CannotOpen, MillstreamError
from millstream.objects.address import ObjectAddress
from millstream.objects.folder import ObjectFolder

PARTIAL = ".part"


class BackupObjects(Protocol):
    """Named bytes. Every method blocks, and any thread may call it."""

    text: str
    """The place, in messages."""
    workers: int
    """How many threads use the place at once."""

    def get(self, name: str) -> bytes | None:
        """Return the content of an object, or None."""

    def put(self, name: str, data: bytes) -> None:
        """Create or replace an object, durably."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing object is no error."""

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all complete objects below a folder, or below the place for an empty name."""

    def sync(self) -> None:
        """Make the names of all objects durable that were put."""

    def clean(self) -> None:
        """Remove what killed runs have left; only the holder of the place's lock may call this."""


class FolderObjects:
    """The objects of a folder, as files."""

    workers = 4
    """A thread waits for the disk most of the time: four take half the time of two, eight no less."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = str(folder)
        self._known_folders: set[str] = set()

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, or None."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, name) from error

    def put(self, name: str, data: bytes) -> None:
        """Write a file under a partial name, sync it, and give it its name."""
        path = f"{self.folder}/{name}"
        partial = f"{path}-{secrets.token_hex(4)}{PARTIAL}"
        try:
            self._make_folder(os.path.dirname(path))
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                _write(descriptor, data)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(partial, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(partial)
            raise self._failed(error, name) from error

    def delete(self, name: str) -> None:
        """Delete a file."""
        try:
            os.unlink(f"{self.folder}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failed(error, name) from error

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all complete files below a folder."""
        for path in self._files(folder):
            if not path.endswith(PARTIAL):
                yield path

    def clean(self) -> None:
        """Remove partial files."""
        for path in self._files(""):
            if path.endswith(PARTIAL):
                self.delete(path)

    def sync(self) -> None:
        """Sync the folders of new objects, so that the names are durable."""
        try:
            for folder in [*self._known_folders, str(self.folder)]:
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # cannot sync folders
                raise self._failed(error, "") from error

    def _make_folder(self, folder: str) -> None:
        if folder not in self._known_folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._known_folders.add(folder)

    def _files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder."""
        try:
            entries = list(os.scandir(self.folder / folder))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(error, folder) from error
        for entry in entries:
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(name)
            else:
                yield name

    def _failed(self, error: OSError, name: str) -> MillstreamError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return full(self.folder, error.strerror or str(error))
        return CannotOpen(
            f"{self.folder / name} cannot be used: {error.strerror or error}", path=self.text
        )


class BucketObjects:
    """The objects below a prefix of a bucket."""

    workers = 8

    def __init__(self, address: ObjectAddress) -> None:
        self.objects = ObjectFolder(address)
        self.text = address.text

    def get(self, name: str) -> bytes | None:
        """Return the content of an object, or None."""
        stored = self.objects.get(name)
        return None if stored is None else stored.data

    def put(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        self.objects.put(name, data)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self.objects.delete(name)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all objects below a folder."""
        for listed in self.objects.list(folder):
            yield listed.name

    def sync(self) -> None:
        """Do nothing: an object in a bucket is durable with its name."""

    def clean(self) -> None:
        """Do nothing: a bucket has no partial objects."""


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
