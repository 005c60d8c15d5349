"""An archive: Parquet files by log and date, and a manifest of the offsets in them.

    PATH/log=NAME/date=YYYY-MM-DD/START-STOP-N.parquet      or by_COLUMN=VALUE instead of date
    PATH/_manifest/log=NAME/START.json      one segment: offsets [start, stop) and their files

A segment counts from the moment its manifest entry exists; a run writes the entry last. Files
without an entry are leftovers of a killed run, and the next run removes them. Other readers skip
names that begin with `_` and see each row once.

A merge writes an entry for the offsets of several segments under the name of the first segment.
From then on the new entry counts, and the entries inside its offsets do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import CannotOpen, CorruptionError
from millstream.spark.archive.folders import REQUESTS_MAX, folder_of
from millstream.spark.archive.partitioning import PartitionBy, escaped
from millstream.spark.source.losses import Loss

FORMAT = 1
MANIFEST = "_manifest"
LOCK = f"{MANIFEST}/lock"
LOOKS_MAX = 5
"""The most reads of a manifest while a run merges its entries."""


class ArchivedFile(Struct, frozen=True, kw_only=True):
    """One Parquet file; its rows are in the order of their offsets."""

    path: str
    """The path inside the archive."""
    partition: str = msgspec.field(name="date")
    """The value of its partition: a date, or the value of a column."""
    start: int
    stop: int
    rows: int
    bytes: int


class Move(Struct, frozen=True, kw_only=True):
    """A staged file and its target in the archive."""

    staged: str
    """Its name in the folder."""
    target: str


class ReplacedFile(Struct, frozen=True, array_like=True):
    """A file whose rows are in a larger one now; older versions of a table still read it."""

    path: str
    at: int
    """Since when, in milliseconds since the epoch."""


class Segment(Struct, frozen=True, kw_only=True):
    """The archived offsets [start, stop) of a log; `lost` names the offsets that are missing."""

    log: str
    created: int
    """The creation time of the log, which tells it from a later log of the same name."""
    start: int
    stop: int
    files: list[ArchivedFile]
    written: int
    """The time of the write in milliseconds since the epoch."""
    lost: list[Loss] = []
    """Offsets of the segment that could not be read."""
    replaced: list[ReplacedFile] = []
    """Files whose rows lie in other files of the segment."""
    format: int = FORMAT

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files of the segment."""
        yield from (file.path for file in self.files)
        yield from (file_.path for file_ in self.replaced)


def directory_of(log: str) -> str:
    """Return the directory of a log, as Spark, DuckDB and pyarrow read it: `log=NAME`, escaped."""
    return escaped("log", log)


def path_of(log: str, by: PartitionBy, file: ArchivedFile, name: str) -> str:
    """Return the path of a file in its log and partition."""
    return f"{directory_of(log)}/{by.directory(file.partition)}/{name}"


class Archive:
    """The archive in a folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = folder_of(path)
        self.path = self.folder.text

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the archive against other runs; the lock ends with the process at the latest."""
        with self.folder.hold(LOCK):
            self.folder.clear()
            try:
                yield
            finally:
                self.folder.clear()

    def segments(self, log: str) -> list[Segment]:
        """Return the segments of a log in order; their offsets may have gaps, but never overlap."""
        return self._current(log, self._entries(log))

    def segments_of(self, logs: Sequence[str]) -> dict[str, list[Segment]]:
        """Return the segments of many logs."""
        with ThreadPoolExecutor(REQUESTS_MAX) as pool:
            return dict(zip(logs, pool.map(self.segments, logs), strict=True))

    def _entries(self, log: str) -> dict[str, Segment]:
        below = f"{MANIFEST}/{directory_of(log)}"
        for _ in range(LOOKS_MAX):
            names = [name for name in self.folder.names(below) if _is_entry(name)]
            segments = {name: self._segment(name) for name in names}
            if all(segments.values()):
                return {name: segment for name, segment in segments.items() if segment}
        raise CannotOpen(
            f"the archive {self.path} changes faster than it can be read: log {log!r}; try again",
            path=self.path,
        )

    def _current(self, log: str, entries: Mapping[str, Segment]) -> list[Segment]:
        """Return the segments that count: segments inside another segment were merged."""
        current: list[Segment] = []
        for segment in sorted(entries.values(), key=lambda segment: (segment.start, -segment.stop)):
            last = current[-1] if current else None
            if last is None or (segment.start >= last.stop and segment.created == last.created):
                current.append(segment)
            elif segment.stop > last.stop or segment.created != last.created:
                raise CorruptionError(
                    f"the manifest of log {log!r} in {self.path} has two segments for offset "
                    f"{segment.start}",
                    what="manifest",
                    where=f"{self.path}/{MANIFEST}/{directory_of(log)}",
                )
        return current

    def logs(self) -> list[str]:
        """Return the names of all archived logs."""
        entries = [name for name in self.folder.names(MANIFEST) if _is_entry(name)]
        firsts = [next(names) for _, names in groupby(entries, lambda name: name.split("/")[1])]
        with ThreadPoolExecutor(REQUESTS_MAX) as pool:
            return [segment.log for segment in pool.map(self._segment, firsts) if segment]

    def check(self) -> None:
        """Refuse a folder that holds no archive."""
        if not self.folder.exists(MANIFEST):
            raise CannotOpen(
                f"there is no archive at {self.path}: no {MANIFEST} in it; "
                "`millstream spark run archive` makes one",
                path=self.path,
            )

    def clean(self, log: str, segments: Sequence[Segment]) -> int:
        """Remove files of a log that no segment names, left by a killed run; return their number.

        Manifest entries of merged segments are removed too.
        """
        named = {path for segment in segments for path in segment.paths()}
        gone = [name for name in self.folder.names(directory_of(log)) if name not in named]
        entries = {entry_of(segment) for segment in segments}
        below = f"{MANIFEST}/{directory_of(log)}"
        merged = [name for name in self.folder.names(below) if name not in entries]
        self.folder.remove([*gone, *merged])
        return len(gone)

    def move_in(self, moves: Sequence[Move]) -> list[str]:
        """Move durable staged files to their targets; return the targets in order.

        On return the moves are durable.
        """
        self.folder.check_held()
        self.folder.move({move.staged: move.target for move in moves})
        return [move.target for move in moves]

    def add(self, segments: Sequence[Segment]) -> None:
        """Write the manifest entries of new segments; from now on the segments count."""
        self._write(self.folder.create, segments)

    def exchange(self, segments: Sequence[Segment]) -> None:
        """Replace entries with the same first offset; entries inside the new segments end."""
        self._write(self.folder.write, segments)

    def _write(
        self, write: Callable[[Mapping[str, bytes]], None], segments: Sequence[Segment]
    ) -> None:
        self.folder.check_held()
        write({entry_of(segment): msgspec.json.encode(segment) for segment in segments})

    def expire(self, segments: Sequence[Segment], before_ms: int) -> int:
        """Remove files that were merged before a time; return their number."""
        changed, gone = [], list[str]()
        for segment in segments:
            old = [each for each in segment.replaced if each.at < before_ms]
            if old:
                gone += [each.path for each in old]
                recent = [each for each in segment.replaced if each.at >= before_ms]
                changed.append(replace(segment, replaced=recent))
        self.folder.check_held()
        self.folder.remove(gone)
        if changed:
            self.exchange(changed)
        return len(gone)

    def losses(self, stops: Mapping[str, int]) -> list[Loss]:
        """Return the offsets that the archive lacks up to the stops: damaged or truncated."""
        lost: list[Loss] = []
        for log, segments in self.segments_of(list(stops)).items():
            stop, at = stops[log], None
            for segment in segments:
                if at is not None and at < min(segment.start, stop):
                    reason = f"log {log!r}: offsets {at} to {segment.start - 1} were never archived"
                    lost.append(Loss(log, at, min(segment.start, stop), reason))
                lost += [loss for loss in segment.lost if loss.start < stop]
                at = segment.stop
        return lost

    def _segment(self, name: str) -> Segment | None:
        """Read an entry; return None if a merge has just removed it."""
        where = self.folder.uri(name)
        try:
            segment = msgspec.json.decode(self.folder.read(name), type=Segment)
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
        if segment.format != FORMAT:
            raise CannotOpen(
                f"{where} has format {segment.format}, and this program knows {FORMAT}; update it",
                path=where,
            )
        return segment


def entry_of(segment: Segment) -> str:
    """The name of a segment's entry in the manifest."""
    return f"{MANIFEST}/{directory_of(segment.log)}/{segment.start:020}.json"


def _is_entry(name: str) -> bool:
    file = name.rpartition("/")[2]
    return name.count("/") == 2 and file.endswith(".json") and not file.startswith(".")
