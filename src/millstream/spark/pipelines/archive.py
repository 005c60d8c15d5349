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
from msgspec.structs import replace

from millstream.clock import SystemClock
from millstream.errors import Conflict, CorruptionError, InvalidInput, NotFound, Truncated
from millstream.log import commands as c
from millstream.record import LogInfo, Seconds, to_ms, wall_ms_of
from millstream.spark.archive import STAGING, Archive, ArchivedFile, Segment
from millstream.spark.failures import point
from millstream.spark.options import read_options
from millstream.spark.pipelines.target import (
    PARQUET_TIMES,
    Job,
    Target,
    Tell,
    check_names,
    options_of,
    quiet,
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

_SETTINGS = {**PARQUET_TIMES, "spark.sql.sources.partitionOverwriteMode": "static"}
_DATE = "date_add(DATE'1970-01-01', cast(floor(unix_seconds(appendTimestamp) / 86400) as int))"


class ArchivedLog(Struct, kw_only=True):
    """What became of one log."""

    log: str
    start: int
    stop: int
    """Offsets [start, stop) were archived by this run."""
    files: int = 0
    bytes: int = 0
    truncated: int = 0
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
    job, into = Job(spark, store, progress), Archive(path)
    if bool(logs) == bool(pattern):
        raise InvalidInput("expected either names of logs or a pattern, to say what to archive")
    if compression not in COMPRESSIONS:
        raise InvalidInput(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if round_records < 1:
        raise InvalidInput(f"a round has at least 1 record, not {round_records}")
    names = check_names(logs)
    with into.writing(), writing(job.place) as session:
        infos = _infos(session, job.place, names, pattern)
        found, left_over = {}, 0
        for name, info in infos.items():
            segments = into.segments(name)
            left_over += into.clean(name, segments)
            at = _begin(info, segments, into, fail_on_data_loss=fail_on_data_loss)
            found[name] = ArchivedLog(log=name, start=at, stop=at)
            _follow(session, name, at, cursor)
        total = sum(info.end_offset - found[name].stop for name, info in infos.items())
        done = 0
        progress("archive", 0, total)
        while done < total:
            backlog = {name: info.end_offset - found[name].stop for name, info in infos.items()}
            taken = {n: count for n, count in shares(backlog, round_records).items() if count}
            ranges = [Range(n, found[n].stop, found[n].stop + count) for n, count in taken.items()]
            for segment in _round(job, into, ranges, infos, compression):
                into.add(segment)
                point("archive noted")
                one = found[segment.log]
                one.stop = segment.stop
                one.files += len(segment.files)
                one.bytes += sum(file.bytes for file in segment.files)
                done += segment.stop - segment.start
                session.execute(c.MoveCursor(segment.log, cursor, segment.stop, forward=True))
            progress("archive", done, total)
        if truncate:
            for one in found.values():
                one.truncated = _truncate(session, infos[one.log], one.stop, keep)
    archived = list(found.values())
    return ArchiveSummary(
        path=str(into.path),
        records=sum(one.records for one in archived),
        files=sum(one.files for one in archived),
        bytes=sum(one.bytes for one in archived),
        truncated=sum(one.truncated for one in archived),
        left_over=left_over,
        seconds=job.seconds,
        logs=archived,
    )


def _infos(
    session: Session, place: Place, names: Sequence[str], pattern: str
) -> dict[str, LogInfo]:
    chosen = {"subscribePattern": pattern} if pattern else subscription(names)
    found = find_logs(session, read_options({**options_of(place), **chosen}))
    for name in names:
        if name not in found:
            raise NotFound(f"there is no log {name!r} to archive", name=name)
    return found


def _begin(
    info: LogInfo, segments: list[Segment], into: Archive, *, fail_on_data_loss: bool
) -> int:
    """Where to go on in a log."""
    if not segments:
        return info.start_offset
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
    return at


def _follow(session: Session, name: str, at: int, cursor: str) -> None:
    """A cursor where the archive stands: also after a run that was killed before it moved it."""
    session.execute(c.OpenCursor(name, cursor, at, CURSOR_SECTION, durable=True))
    session.execute(c.MoveCursor(name, cursor, at, forward=True))


def _round(
    job: Job,
    into: Archive,
    ranges: list[Range],
    infos: dict[str, LogInfo],
    compression: str,
) -> list[Segment]:
    """Write some offsets of some logs; their segments, which do not count yet."""
    from pyspark.sql import functions as f

    numbers = {one.log: i for i, one in enumerate(ranges)}
    rows = job.read(
        list(numbers),
        startingOffsets={one.log: one.start for one in ranges},
        endingOffsets={one.log: one.stop for one in ranges},
        typedHeaders=True,
    )
    number = f.create_map(*(f.lit(part) for pair in numbers.items() for part in pair))
    staged = into.path / STAGING
    with job.configured(_SETTINGS):
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
    segments = [
        Segment(
            log=one.log,
            created=wall_ms_of(infos[one.log].created),
            start=one.start,
            stop=one.stop,
            files=_move(into, one, staged / f"number={numbers[one.log]}"),
            written=now_ms,
        )
        for one in ranges
    ]
    point("archive moved")
    return segments


def _move(into: Archive, wanted: Range, staged: Path) -> list[ArchivedFile]:
    """The files of one log to their places, once they hold all that they are to hold."""
    found = sorted(map(_file, staged.glob("date=*/*.parquet")), key=lambda file: file.start)
    rows = sum(file.rows for file in found)
    ends = (found[0].start, max(file.stop for file in found)) if found else (0, 0)
    if rows != len(wanted) or ends != (wanted.start, wanted.stop):
        raise CorruptionError(
            f"Spark wrote {rows:,} rows of log {wanted.log!r}, at offsets {ends[0]} to {ends[1] - 1}, "
            f"where {len(wanted):,} from {wanted.start} on were expected; nothing of it was archived",
            what="archive",
            where=str(staged),
        )
    moved = []
    for number, file in enumerate(found):
        name = f"{wanted.start:020}-{wanted.stop:020}-{number}.parquet"
        place = into.move_in(wanted.log, Path(file.path), date=file.date, name=name)
        moved.append(replace(file, path=place))
    return moved


def _file(path: Path) -> ArchivedFile:
    """What a file holds, by its own account."""
    from pyarrow import compute as pc
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        offsets: Any = file.read(columns=["offset"]).column("offset")
    ends: Any = pc.min_max(offsets)
    start, last = ends["min"].as_py(), ends["max"].as_py()
    return ArchivedFile(
        path=str(path),
        date=path.parent.name.removeprefix("date="),
        start=start,
        stop=last + 1,
        rows=pc.count_distinct(offsets).as_py(),
        bytes=path.stat().st_size,
    )


def _truncate(session: Session, before: LogInfo, archived: int, keep: Seconds | None) -> int:
    """Let a log forget what its retention and `keep` allow, never what is not archived.

    What housekeeping took away since the run began counts too: it followed the same cursor.
    """
    name = before.name
    if before.retention:
        session.execute(c.EnforceRetention(name))
    info = session.execute(c.DescribeLog(name))
    if info is None:
        return 0
    gone = info.start_offset - before.start_offset
    if keep is not None:
        stop = offset_at(session, info, SystemClock().wall_ms() - to_ms(keep))
        if min(stop, archived) > info.start_offset:
            gone += session.execute(c.Truncate(name, min(stop, archived)))
    return gone
