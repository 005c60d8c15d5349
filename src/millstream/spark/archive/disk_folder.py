"""A folder of files on a disk or a mounted share; writes are durable and all-or-nothing."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.errors import CannotOpen, Conflict, InvalidInput, Locked

SYNCS_MAX = 16
STAGING = "_staging"
"""Files that a run has not moved to their places yet."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def disk_path(path: str | os.PathLike[str]) -> Path:
    """A directory that every machine which runs tasks can reach."""
    text = os.fspath(path)
    plain = text.removeprefix("file://") if text.startswith("file:///") else text
    plain = plain.removeprefix("file:") if plain.startswith("file:/") else plain
    if not plain or _SCHEME.match(plain):
        raise InvalidInput(
            f"expected a directory on a disk or a mounted share, not {text!r}; mount it, or "
            "copy the directory there after each run"
        )
    return Path(plain).absolute()


class DiskFolder:
    """The files below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = str(path)

    def uri(self, name: str) -> str:
        """Return the address of a file for other libraries."""
        return str(self.path / name)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the folder by a file in it; ends with the process at the latest."""
        lock = self.path / name
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Locked(
                    f"another run writes to the archive {self.path}; wait until it has ended"
                ) from None
            yield

    def check_held(self) -> None:
        """A lock on a disk is not lost."""

    def names(self, below: str) -> list[str]:
        """The names of all files below a folder, in order."""
        file_names: list[str] = []
        try:
            for folder, _, files in os.walk(self.path / below, onerror=_raise):
                inside = os.path.relpath(folder, self.path)
                file_names += [f"{inside}/{file}" for file in files]
        except FileNotFoundError:
            pass  # a missing folder holds no files
        except OSError as error:
            raise CannotOpen(
                f"the archive {self.path} cannot be read: {error.strerror}", path=self.text
            ) from error
        return sorted(file_names)

    def exists(self, below: str) -> bool:
        """Return whether a folder exists."""
        return self.path.joinpath(below).is_dir()

    def read(self, name: str) -> bytes:
        """A small file."""
        return self.path.joinpath(name).read_bytes()

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write small files, each as a whole, in the place of what is there."""
        self._write(files, os.replace)

    def create(self, files: Mapping[str, bytes]) -> None:
        """Write small files that must not be there yet."""
        self._write(files, _place_new)

    def _write(self, files: Mapping[str, bytes], place: Callable[[Path, Path], None]) -> None:
        drafts: dict[Path, Path] = {}
        for name, data in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            drafts[file] = _draft(file, data)
        _sync_all(drafts.values())
        for file, draft in drafts.items():
            place(draft, file)
        folders = {file.parent for file in drafts}
        _sync_all(folders | {folder.parent for folder in folders})

    def draft(self) -> Path:
        """A new path that a task can write a file to."""
        folder = self.path / STAGING
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{secrets.token_hex(12)}.parquet"

    def stage(self, draft: Path) -> str:
        """Make a file that was written durable; its name."""
        sync_path(draft)
        return str(draft.relative_to(self.path))

    def move(self, moves: Mapping[str, str]) -> None:
        """Rename files durably."""
        folders: set[Path] = {self.path}
        for name, target in moves.items():
            file = self.path / target
            if file.parent not in folders:
                file.parent.mkdir(parents=True, exist_ok=True)
                folders |= {file.parent, file.parent.parent}
            self.path.joinpath(name).rename(file)
        _sync_all(folders)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; ignore missing files."""
        for name in names:
            self.path.joinpath(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the staged files."""
        shutil.rmtree(self.path / STAGING, ignore_errors=True)

    def opened(self, name: str) -> Any:
        """What a reader of Parquet takes."""
        return str(self.path / name)


def store_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it is there as a whole or not at all, also after a power cut."""
    draft = _draft(path, data)
    sync_path(draft)
    draft.rename(path)
    sync_path(path.parent)


def _place_new(draft: Path, file: Path) -> None:
    """Give a draft its final name if the name is free; without hard links there is no check."""
    try:
        os.link(draft, file)
    except FileExistsError:
        draft.unlink()
        raise Conflict(f"{file} was written by another run meanwhile") from None
    except OSError:
        draft.rename(file)
    else:
        draft.unlink()


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    draft.write_bytes(data)
    return draft


def _raise(error: OSError) -> None:
    raise error


def _sync_all(paths: Iterable[Path]) -> None:
    """Sync many paths, several at a time, so that the file system can join the writes."""
    with ThreadPoolExecutor(SYNCS_MAX) as pool:
        for _ in pool.map(sync_path, paths):
            pass


def sync_path(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
