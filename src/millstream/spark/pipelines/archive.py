"""The pipeline `archive`: logs → Parquet files by log and date, exactly once; then truncation.

A round takes some offsets of each log, lets Spark write them aside, moves the files to their places,
and adds a segment to the manifest: last, so that only what is whole counts. A log is truncated only
behind the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import Conflict, CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.record import LogInfo, Seconds, to_ms, wall_ms_of
from millstream.spark.archive import STAGING, Archive, ArchivedFile, Segment
from millstream.spark.failures import point
from millstream.spark.options import read_options
from millstream.spark.pipelines.target import (
    Stopwatch,
    Target,
    Tell,
    check_names,
    configured,
    options_of,
    place_of,
    quiet,
    read,
    subscription,
)
from millstream.spark.place import Place, writing
from millstream.spark.planning import Range, find_logs, offset_at
from millstream.spark.stream import CURSOR_SECTION, shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.command import Session

ROUND_RECORDS = 1_000_000
CURSOR = "archive"
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "uncompressed")

_SETTINGS = {
    # What every reader of Parquet takes for a time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
_DATE = "date_add(DATE'1970-01-01', cast(floor(unix_seconds(appendTimestamp) / 86400) as int))"


class ArchivedLog(Struct, frozen=True, kw_only=True):
    """What became of one log."""

    log: str
    start: int
    stop: int
    """Offsets [start, stop) were archived by this run."""
    files: int
    bytes: int
    truncated: int
    """Records that the log forgot meanwhile, because they are archived and its retention says so."""

    @property
    def records(self) -> int:
        """How many records were archived."""
        return self.stop - self.start


class ArchiveSummary(Struct, frozen=True, kw_only=True):
    """What a run did."""

    path: str
    records: int
    files: int
    bytes: int
    truncated: int
    left_over: int
    """Files of a killed run that were removed."""
    seconds: float
    logs: list[ArchivedLog]


class _Book(Struct, kw_only=True):
    """How far a log is archived."""

    info: LogInfo
    start: int
    at: int
    files: int = 0
    bytes: int = 0
    truncated: int = 0


def archive(
    spark: SparkSession,
    store: Target,
    path: str | os.PathLike[str],
    *,
    logs: Sequence[str] = (),
    pattern: str = "",
    cursor: str = CURSOR,
    round_records: int = ROUND_RECORDS,
    compression: str = "zstd",
    truncate: bool = True,
    keep: Seconds | None = None,
    fail_on_data_loss: bool = True,
    progress: Tell = quiet,
) -> ArchiveSummary:
    """Archive what is new in logs, chosen by name or by a regular expression, up to their ends now.

    A durable cursor of that name follows, so that *consumed* retention waits for the archive. Unless
    `truncate` is off, each log then forgets what its retention allows, and with `keep` also what is
    archived and older than that. Records that were truncated before they could be archived raise
    `Truncated`; with `fail_on_data_loss` off the archive has a gap there.
    """
    watch, place, into = Stopwatch(), place_of(store), Archive(path)
    if bool(logs) == bool(pattern):
        raise InvalidInput("expected either names of logs or a pattern, to say what to archive")
    if compression not in COMPRESSIONS:
        raise InvalidInput(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if round_records < 1:
        raise InvalidInput(f"a round has at least 1 record, not {round_records}")
    names = check_names(logs)
    with into.writing(), writing(place) as session:
        infos = _infos(session, place, names, pattern)
        books, left_over = {}, 0
        for name, info in infos.items():
            segments = into.segments(name)
            left_over += into.clean(name, segments)
            books[name] = _book(info, segments, into, fail_on_data_loss=fail_on_data_loss)
            _follow(session, books[name], cursor)
        total = sum(book.info.end_offset - book.at for book in books.values())
        done = 0
        progress("archive", 0, total)
        while done < total:
            backlog = {name: book.info.end_offset - book.at for name, book in books.items()}
            taken = {n: count for n, count in shares(backlog, round_records).items() if count}
            ranges = [Range(n, books[n].at, books[n].at + count) for n, count in taken.items()]
            for segment in _round(spark, place, into, ranges, infos, compression):
                into.add(segment)
                point("archive noted")
                book = books[segment.log]
                book.at = segment.stop
                book.files += len(segment.files)
                book.bytes += sum(file.bytes for file in segment.files)
                done += segment.stop - segment.start
                session.execute(c.MoveCursor(segment.log, cursor, segment.stop, forward=True))
            progress("archive", done, total)
        if truncate:
            for book in books.values():
                book.truncated = _truncate(session, book, keep)
    return _summary(into.path, books, left_over, watch.seconds)


def _infos(
    session: Session, place: Place, names: Sequence[str], pattern: str
) -> dict[str, LogInfo]:
    chosen = {"subscribePattern": pattern} if pattern else subscription(names)
    found = find_logs(session, read_options({**options_of(place), **chosen}))
    for name in names:
        if name not in found:
            raise NotFound(f"there is no log {name!r} to archive", name=name)
    return found


def _book(
    info: LogInfo, segments: list[Segment], into: Archive, *, fail_on_data_loss: bool
) -> _Book:
    """Where to go on in a log."""
    if not segments:
        return _Book(info=info, start=info.start_offset, at=info.start_offset)
    at = segments[-1].stop
    if segments[-1].created != wall_ms_of(info.created) or at > info.end_offset:
        raise Conflict(
            f"{into.path} holds another log {info.name!r}, which was deleted since; archive the "
            "new one to another directory"
        )
    if at < info.start_offset:
        if fail_on_data_loss:
            raise Truncated(
                f"log {info.name!r} begins at {info.start_offset}, but is archived up to {at} only: "
                "the records between were truncated; allow a gap to go on without them",
                log=info.name,
                offset=at,
                start=info.start_offset,
            )
        at = info.start_offset
    return _Book(info=info, start=at, at=at)


def _follow(session: Session, book: _Book, cursor: str) -> None:
    """A cursor where the archive stands: also after a run that was killed before it moved it."""
    name = book.info.name
    session.execute(c.OpenCursor(name, cursor, book.at, CURSOR_SECTION, durable=True))
    session.execute(c.MoveCursor(name, cursor, book.at, forward=True))


def _round(
    spark: SparkSession,
    place: Place,
    into: Archive,
    ranges: list[Range],
    infos: dict[str, LogInfo],
    compression: str,
) -> list[Segment]:
    """Write some offsets of some logs; their segments, which do not count yet."""
    from pyspark.sql import functions as f

    numbers = {one.log: i for i, one in enumerate(ranges)}
    rows = read(
        spark,
        place,
        list(numbers),
        startingOffsets={one.log: one.start for one in ranges},
        endingOffsets={one.log: one.stop for one in ranges},
        typedHeaders=True,
    )
    number = f.create_map(*(f.lit(part) for pair in numbers.items() for part in pair))
    staged = into.path / STAGING
    with configured(spark, _SETTINGS):
        (
            rows.drop("partition")
            .withColumn("number", number[f.col("topic")])
            .withColumn("date", f.expr(_DATE))
            # As the files are laid out, so that Spark does not sort again, in another order.
            .sortWithinPartitions("number", "date", "offset")
            .write.partitionBy("number", "date")
            .option("compression", compression)
            .mode("overwrite")
            .parquet(str(staged))
        )
    point("archive staged")
    now_ms = SystemClock().wall_ms()
    segments = []
    for one in ranges:
        files = _move(into, one, staged / f"number={numbers[one.log]}")
        created = wall_ms_of(infos[one.log].created)
        segments.append(
            Segment(
                log=one.log,
                created=created,
                start=one.start,
                stop=one.stop,
                files=files,
                written=now_ms,
            )
        )
    point("archive moved")
    return segments


def _move(into: Archive, wanted: Range, staged: Path) -> list[ArchivedFile]:
    """The files of one log to their places, once they hold all that they are to hold."""
    found = sorted(
        (_file(path) for path in staged.glob("date=*/*.parquet")), key=lambda pair: pair[1].start
    )
    rows = sum(file.rows for _, file in found)
    ends = (found[0][1].start, max(file.stop for _, file in found)) if found else (0, 0)
    if rows != len(wanted) or ends != (wanted.start, wanted.stop):
        raise CorruptionError(
            f"Spark wrote {rows:,} rows of log {wanted.log!r}, at offsets {ends[0]} to {ends[1] - 1}, "
            f"where {len(wanted):,} from {wanted.start} on were expected; nothing of it was archived",
            what="archive",
            where=str(staged),
        )
    moved = []
    for number, (path, file) in enumerate(found):
        name = f"{wanted.start:020}-{wanted.stop:020}-{number}.parquet"
        place = into.move_in(wanted.log, path, date=file.date, name=name)
        moved.append(
            ArchivedFile(
                path=place,
                date=file.date,
                start=file.start,
                stop=file.stop,
                rows=file.rows,
                bytes=file.bytes,
            )
        )
    return moved


def _file(path: Path) -> tuple[Path, ArchivedFile]:
    """What a file holds, by its own account."""
    from pyarrow import compute as pc
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        offsets: Any = file.read(columns=["offset"]).column("offset")
    ends: Any = pc.min_max(offsets)
    start, last = ends["min"].as_py(), ends["max"].as_py()
    return path, ArchivedFile(
        path=str(path),
        date=path.parent.name.removeprefix("date="),
        start=start,
        stop=last + 1,
        rows=pc.count_distinct(offsets).as_py(),
        bytes=path.stat().st_size,
    )


def _truncate(session: Session, book: _Book, keep: Seconds | None) -> int:
    """Let a log forget what its retention and `keep` allow, never what is not archived.

    What housekeeping took away since the run began counts too: it followed the same cursor.
    """
    name = book.info.name
    if book.info.retention:
        session.execute(c.EnforceRetention(name))
    info = session.execute(c.DescribeLog(name))
    if info is None:
        return 0
    gone = info.start_offset - book.info.start_offset
    if keep is not None:
        before = offset_at(session, info, SystemClock().wall_ms() - to_ms(keep))
        before = min(before, book.at)
        if before > info.start_offset:
            gone += session.execute(c.Truncate(name, before))
    return gone


def _summary(path: Path, books: dict[str, _Book], left_over: int, seconds: float) -> ArchiveSummary:
    logs = [
        ArchivedLog(
            log=name,
            start=book.start,
            stop=book.at,
            files=book.files,
            bytes=book.bytes,
            truncated=book.truncated,
        )
        for name, book in books.items()
    ]
    return ArchiveSummary(
        path=str(path),
        records=sum(one.records for one in logs),
        files=sum(one.files for one in logs),
        bytes=sum(one.bytes for one in logs),
        truncated=sum(one.truncated for one in logs),
        left_over=left_over,
        seconds=seconds,
        logs=logs,
    )
