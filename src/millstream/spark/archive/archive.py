"""An archive: Parquet files by log and date, and a manifest that says which offsets they hold.

    PATH/log=NAME/date=YYYY-MM-DD/START-STOP-N.parquet
    PATH/_manifest/log=NAME/START.json         one segment: offsets [start, stop) and their files

A segment counts once its manifest entry is there, which is written last. Files without one are
left over from a run that was killed; the next run removes them before it writes. Readers that know
nothing of us pass over names that begin with `_`, and see each row once.

Merging writes an entry that holds the offsets of several, in the place of the first of them: from
then on it counts, and the others, which lie inside it, do not.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import CannotOpen, CorruptionError
from millstream.spark.archive.folders import REQUESTS_MAX, folder_of
from millstream.spark.source.losses import Loss

FORMAT = 1
MANIFEST = "_manifest"
LOCK = f"{MANIFEST}/lock"
LOOKS_MAX = 5
"""How often a manifest is looked at while a run merges its entries."""
DIRECTORY_BYTES_MAX = 200
"""Bytes of a directory's name: a longer log name is cut, and ends with a digest."""

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^<>|~]""")


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

    staged: str
    """Its name in the folder."""
    log: str
    date: str
    name: str


class ReplacedFile(Struct, frozen=True, array_like=True):
    """A file whose rows are in a larger one now; older versions of a table still read it."""

    path: str
    at: int
    """Since when, in milliseconds since the epoch."""


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
    replaced: list[ReplacedFile] = []
    """Files that hold nothing that the others lack."""
    format: int = FORMAT

    def paths(self) -> Iterator[str]:
        """All files that belong to it."""
        yield from (file.path for file in self.files)
        yield from (one.path for one in self.replaced)


def directory_of(log: str) -> str:
    """The directory of a log, as Spark, DuckDB and pyarrow read it: `log=NAME`, escaped."""
    name = "log=" + _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", log)
    if len(name.encode()) <= DIRECTORY_BYTES_MAX:
        return name
    digest = hashlib.sha256(log.encode()).hexdigest()[:16]
    return name.encode()[: DIRECTORY_BYTES_MAX - 20].decode("utf-8", "ignore") + "~" + digest


class Archive:
    """The archive in a folder: what it holds of which log."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = folder_of(path)
        self.path = self.folder.text

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the archive, so that no other run writes to it; ends with the process at the latest."""
        with self.folder.hold(LOCK):
            self.folder.clear()
            try:
                yield
            finally:
                self.folder.clear()

    def segments(self, log: str) -> list[Segment]:
        """What is archived of a log, in order; its offsets may have gaps, but never overlap."""
        return self._current(log, self._entries(log))

    def segments_of(self, logs: Sequence[str]) -> dict[str, list[Segment]]:
        """The same of many logs."""
        with ThreadPoolExecutor(REQUESTS_MAX) as pool:
            return dict(zip(logs, pool.map(self.segments, logs), strict=True))

    def _entries(self, log: str) -> dict[str, Segment]:
        below = f"{MANIFEST}/{directory_of(log)}"
        for _ in range(LOOKS_MAX):
            names = [name for name in self.folder.names(below) if _is_entry(name)]
            found = {name: self._segment(name) for name in names}
            if all(found.values()):
                return {name: one for name, one in found.items() if one}
        raise CannotOpen(
            f"the archive {self.path} changes faster than it can be read: log {log!r}; try again",
            path=self.path,
        )

    def _current(self, log: str, entries: Mapping[str, Segment]) -> list[Segment]:
        """The segments that count: those inside of another were merged into it."""
        found: list[Segment] = []
        for one in sorted(entries.values(), key=lambda one: (one.start, -one.stop)):
            last = found[-1] if found else None
            if last is None or (one.start >= last.stop and one.created == last.created):
                found.append(one)
            elif one.stop > last.stop or one.created != last.created:
                raise CorruptionError(
                    f"the manifest of log {log!r} in {self.path} has two segments for offset "
                    f"{one.start}",
                    what="manifest",
                    where=f"{self.path}/{MANIFEST}/{directory_of(log)}",
                )
        return found

    def logs(self) -> list[str]:
        """The names of all logs of which something is archived."""
        entries = [name for name in self.folder.names(MANIFEST) if _is_entry(name)]
        firsts = [next(some) for _, some in groupby(entries, lambda name: name.split("/")[1])]
        with ThreadPoolExecutor(REQUESTS_MAX) as pool:
            return [one.log for one in pool.map(self._segment, firsts) if one]

    def check(self) -> None:
        """Refuse a folder that holds no archive."""
        if not self.folder.exists(MANIFEST):
            raise CannotOpen(
                f"there is no archive at {self.path}: no {MANIFEST} in it; "
                "`millstream spark run archive` makes one",
                path=self.path,
            )

    def clean(self, log: str, segments: Sequence[Segment]) -> int:
        """Remove files of a log that no segment names: a killed run left them; how many.

        Entries that were merged into another go too.
        """
        known = {path for one in segments for path in one.paths()}
        gone = [name for name in self.folder.names(directory_of(log)) if name not in known]
        kept = {entry_of(one) for one in segments}
        below = f"{MANIFEST}/{directory_of(log)}"
        merged = [name for name in self.folder.names(below) if name not in kept]
        self.folder.remove([*gone, *merged])
        return len(gone)

    def move_in(self, moves: Sequence[Move]) -> list[str]:
        """Move staged files, which are durable, to their places; answers where, in order.

        On return the moves are durable.
        """
        places = [f"{directory_of(one.log)}/date={one.date}/{one.name}" for one in moves]
        self.folder.check_held()
        staged = [one.staged for one in moves]
        self.folder.move(dict(zip(staged, places, strict=True)))
        return places

    def add(self, segments: Sequence[Segment]) -> None:
        """Write the manifest's entries of segments: from now on they count, each as a whole."""
        self._write(self.folder.create, segments)

    def exchange(self, segments: Sequence[Segment]) -> None:
        """Write entries in the place of those that begin where they do; the others are inside."""
        self._write(self.folder.write, segments)

    def _write(
        self, write: Callable[[Mapping[str, bytes]], None], segments: Sequence[Segment]
    ) -> None:
        self.folder.check_held()
        write({entry_of(one): msgspec.json.encode(one) for one in segments})

    def expire(self, segments: Sequence[Segment], before_ms: int) -> int:
        """Remove files that were merged into others before a time; how many."""
        changed, gone = [], list[str]()
        for one in segments:
            old = [each for each in one.replaced if each.at < before_ms]
            if old:
                gone += [each.path for each in old]
                kept = [each for each in one.replaced if each.at >= before_ms]
                changed.append(replace(one, replaced=kept))
        self.folder.check_held()
        self.folder.remove(gone)
        if changed:
            self.exchange(changed)
        return len(gone)

    def losses(self, stops: Mapping[str, int]) -> list[Loss]:
        """What is missing of logs up to some offsets: it was damaged, or truncated too early."""
        found: list[Loss] = []
        for log, segments in self.segments_of(list(stops)).items():
            stop, at = stops[log], None
            for one in segments:
                if at is not None and at < min(one.start, stop):
                    reason = f"log {log!r}: offsets {at} to {one.start - 1} were never archived"
                    found.append(Loss(log, at, min(one.start, stop), reason))
                found += [loss for loss in one.lost if loss.start < stop]
                at = one.stop
        return found

    def _segment(self, name: str) -> Segment | None:
        """An entry, or None if it was merged into another just now."""
        where = self.folder.uri(name)
        try:
            found = msgspec.json.decode(self.folder.read(name), type=Segment)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{where} is not an entry of a manifest: {error}", what="manifest", where=where
            ) from error
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CannotOpen(
                f"the archive {self.path} cannot be read: {error.strerror}", path=self.path
            ) from error
        if found.format != FORMAT:
            raise CannotOpen(
                f"{where} has format {found.format}, and this program knows {FORMAT}; update it",
                path=where,
            )
        return found


def entry_of(segment: Segment) -> str:
    """The name of a segment's entry in the manifest."""
    return f"{MANIFEST}/{directory_of(segment.log)}/{segment.start:020}.json"


def _is_entry(name: str) -> bool:
    file = name.rpartition("/")[2]
    return name.count("/") == 2 and file.endswith(".json") and not file.startswith(".")
