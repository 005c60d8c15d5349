"""An archive on disk: Parquet files by log and date, and a manifest that says which offsets they hold.

    PATH/log=NAME/date=YYYY-MM-DD/START-STOP-N.parquet
    PATH/_manifest/log=NAME/START.json         one segment: offsets [start, stop) and their files

A segment counts once its manifest entry is there, which is written last. Files without one are
left over from a run that was killed; the next run removes them before it writes. Readers that know
nothing of us pass over names that begin with `_`, and see each row once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from millstream.errors import CannotOpen, CorruptionError, InvalidInput, Locked
from millstream.spark.losses import Loss

FORMAT = 1
MANIFEST = "_manifest"
STAGING = "_staging"
SYNCS_MAX = 16
DIRECTORY_BYTES_MAX = 200
"""Bytes of a directory's name: a longer log name is cut, and ends with a digest."""

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^<>|~]""")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class ArchivedFile(Struct, frozen=True, kw_only=True):
    """One Parquet file; its rows are in the order of their offsets."""

    path: str
    """Seen from the archive."""
    date: str
    start: int
    stop: int
    rows: int
    bytes: int


class Move(Struct, frozen=True, kw_only=True):
    """A staged file, and where it belongs."""

    staged: Path
    log: str
    date: str
    name: str


class Segment(Struct, frozen=True, kw_only=True):
    """Offsets [start, stop) of a log, all of them archived but for those that are lost."""

    log: str
    created: int
    """When the log was made: one of the same name that was made later is another."""
    start: int
    stop: int
    files: list[ArchivedFile]
    written: int
    """When, in milliseconds since the epoch."""
    lost: list[Loss] = []
    """Of these offsets, those that could not be read any more."""
    format: int = FORMAT


def archive_path(path: str | os.PathLike[str]) -> Path:
    """Where an archive is: a directory that every machine which runs tasks can reach."""
    text = os.fspath(path)
    plain = text.removeprefix("file://") if text.startswith("file:///") else text
    plain = plain.removeprefix("file:") if plain.startswith("file:/") else plain
    if not plain or _SCHEME.match(plain):
        raise InvalidInput(
            f"an archive is a directory on a disk or a mounted share, not {text!r}; mount it, or "
            "copy the directory there after each run"
        )
    return Path(plain).absolute()


def directory_of(log: str) -> str:
    """The directory of a log, as Spark, DuckDB and pyarrow read it: `log=NAME`, escaped."""
    name = "log=" + _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", log)
    if len(name.encode()) <= DIRECTORY_BYTES_MAX:
        return name
    digest = hashlib.sha256(log.encode()).hexdigest()[:16]
    return name.encode()[: DIRECTORY_BYTES_MAX - 20].decode("utf-8", "ignore") + "~" + digest


class Archive:
    """The archive in a directory: what it holds of which log."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = archive_path(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the archive, so that no other run writes to it; ends with the process at the latest."""
        self.path.joinpath(MANIFEST).mkdir(parents=True, exist_ok=True)
        with self.path.joinpath(MANIFEST, "lock").open("w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Locked(
                    f"another run writes to the archive {self.path}; wait until it has ended"
                ) from None
            shutil.rmtree(self.path / STAGING, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self.path / STAGING, ignore_errors=True)

    def segments(self, log: str) -> list[Segment]:
        """What is archived of a log, in order; its offsets may have gaps, but never overlap."""
        folder = self.path / MANIFEST / directory_of(log)
        try:
            entries = sorted(folder.glob("*.json"))
            found = [_segment(entry) for entry in entries]
        except OSError as error:
            raise CannotOpen(
                f"the archive {self.path} cannot be read: {error.strerror}", path=str(self.path)
            ) from error
        found.sort(key=lambda one: one.start)
        for one, other in pairwise(found):
            if other.start < one.stop or other.created != one.created:
                raise CorruptionError(
                    f"the manifest of log {log!r} in {self.path} has two segments for offset "
                    f"{other.start}",
                    what="manifest",
                    where=str(folder),
                )
        return found

    def logs(self) -> Iterator[str]:
        """The names of all logs of which something is archived."""
        for folder in sorted(self.path.joinpath(MANIFEST).glob("log=*")):
            entry = next(iter(sorted(folder.glob("*.json"))), None)
            if entry is not None:
                yield _segment(entry).log

    def check(self) -> None:
        """Refuse a directory that holds no archive."""
        if not self.path.joinpath(MANIFEST).is_dir():
            raise CannotOpen(
                f"there is no archive at {self.path}: no {MANIFEST} in it; "
                "`millstream spark run archive` makes one",
                path=str(self.path),
            )

    def clean(self, log: str, segments: Sequence[Segment]) -> int:
        """Remove files of a log that no segment names: a killed run left them; how many."""
        known = {file.path for one in segments for file in one.files}
        gone = 0
        for file in self.path.joinpath(directory_of(log)).glob("date=*/*"):
            if str(file.relative_to(self.path)) not in known:
                file.unlink()
                gone += 1
        for entry in self.path.joinpath(MANIFEST, directory_of(log)).glob(".*.tmp"):
            entry.unlink()
        return gone

    def move_in(self, moves: Sequence[Move]) -> list[str]:
        """Move staged files, which are durable, to their places; answers where, in order.

        On return the moves are durable.
        """
        folders: set[Path] = {self.path}
        places = []
        for one in moves:
            folder = self.path / directory_of(one.log) / f"date={one.date}"
            if folder not in folders:
                folder.mkdir(parents=True, exist_ok=True)
                folders |= {folder, folder.parent}
            one.staged.rename(folder / one.name)
            places.append(str((folder / one.name).relative_to(self.path)))
        _sync_all(folders)
        return places

    def add(self, segments: Sequence[Segment]) -> None:
        """Write the manifest's entries of segments: from now on they count, each as a whole."""
        drafts: dict[Path, Path] = {}
        for one in segments:
            folder = self.path / MANIFEST / directory_of(one.log)
            folder.mkdir(parents=True, exist_ok=True)
            entry = folder / f"{one.start:020}.json"
            drafts[entry] = _draft(entry, msgspec.json.encode(one))
        _sync_all(drafts.values())
        for entry, draft in drafts.items():
            draft.rename(entry)
        _sync_all({self.path / MANIFEST, *(entry.parent for entry in drafts)})


def _segment(entry: Path) -> Segment:
    try:
        found = msgspec.json.decode(entry.read_bytes(), type=Segment)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"{entry} is not an entry of a manifest: {error}", what="manifest", where=str(entry)
        ) from error
    if found.format != FORMAT:
        raise CannotOpen(
            f"{entry} has format {found.format}, and this program knows {FORMAT}; update it",
            path=str(entry),
        )
    return found


def store_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it is there as a whole or not at all, also after a power cut."""
    draft = _draft(path, data)
    sync_path(draft)
    draft.rename(path)
    sync_path(path.parent)


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    return draft


def _sync_all(paths: Iterable[Path]) -> None:
    """Make many durable, several at a time: file systems then write them together."""
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
