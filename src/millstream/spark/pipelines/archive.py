"""The pipeline `archive`: logs → Parquet files by log and date, exactly once; then truncation.

A round takes some offsets of each log, lets tasks of Spark write them aside, moves the files to their
places, and adds segments to the manifest: last, so that only what is whole counts. A log is truncated
only behind the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.clock import SystemClock
from millstream.errors import (
    Conflict,
    CorruptionError,
    InvalidInput,
    MillstreamError,
    NotFound,
    Truncated,
)
from millstream.log import commands as c
from millstream.record import LogInfo, Seconds, to_ms, wall_ms_of
from millstream.spark.archive.archive import Archive, ArchivedFile, Move, Segment
from millstream.spark.archive.lake import Registered, check_table
from millstream.spark.archive.task import WrittenRange
from millstream.spark.failures import point
from millstream.spark.options import read_options
from millstream.spark.pipelines.merging import merge_and_register
from millstream.spark.pipelines.target import (
    Job,
    Target,
    Tell,
    check_names,
    options_of,
    quiet,
    subscription,
)
from millstream.spark.place import Place, writing
from millstream.spark.source.bins import Bin, BinSizes, Range, bins
from millstream.spark.source.cursors import StreamCursors
from millstream.spark.source.losses import Loss, count
from millstream.spark.source.planning import bytes_of, find_logs, offset_at, with_wholes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.command import Session

ROUND_RECORDS = 1_000_000
EXPIRE_S = 7 * 24 * 3600.0
"""How long older versions of a table can be read after their files were merged."""
CURSOR = "archive"
NAMED_MAX = 10
"""Logs that could not be archived and that an error names."""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "uncompressed")

_decode = msgspec.msgpack.Decoder(list[WrittenRange]).decode


class ArchivedLog(Struct, kw_only=True):
    """What became of one log."""

    log: str
    start: int
    stop: int
    """Offsets [start, stop) were archived by this run."""
    files: int = 0
    bytes: int = 0
    lost: int = 0
    """Of those offsets, how many could not be read any more."""
    truncated: int = 0
    """Records that the log forgot meanwhile, because they are archived and its retention says so."""

    @property
    def records(self) -> int:
        """How many records were archived."""
        return self.stop - self.start - self.lost

    def add(self, segment: Segment) -> None:
        """Count what was archived."""
        self.stop = segment.stop
        self.lost += count(segment.lost)
        self.files += len(segment.files)
        self.bytes += sum(file.bytes for file in segment.files)


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
    lost: list[Loss] = []
    """What could not be read, and was left out."""
    table: Registered | None = None
    """What was added to the table, if one was asked for."""
    merged: int = 0
    """Small files that were merged into larger ones."""
    expired: int = 0
    """Merged files that were removed, because no version of a table needs them any more."""


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
    allow_gaps: bool = False,
    table: str = "",
    target_file_size: int = 0,
    expire: Seconds = EXPIRE_S,
    progress: Tell = quiet,
) -> ArchiveSummary:
    """Archive what is new in logs, chosen by name or by a regular expression, up to their ends now.

    A durable cursor of that name follows, so that *consumed* retention waits for the archive. Unless
    `truncate` is off, each log then forgets what its retention allows, and with `keep` also what is
    archived and older than that. A log that cannot be archived, because records were truncated
    before (`Truncated`), are damaged (`CorruptionError`), or because it was made anew (`Conflict`),
    stays as it is: the other logs are archived, and then its error is raised. With `allow_gaps` the
    archive has a gap where records are lost, and the summary names them. `table` is iceberg or
    delta: what is archived is then also in a table of that kind, before any log is truncated. With
    `target_file_size` in bytes, files of a log and date are merged up to that size; what was merged
    stays for `expire`, for older versions of the table.
    """
    job, into = Job(spark, store, progress), Archive(path)
    if bool(logs) == bool(pattern):
        raise InvalidInput("expected either names of logs or a pattern, to say what to archive")
    names = check_names(logs)
    _check_wishes(compression, round_records, table, target_file_size)
    codec = "none" if compression == "uncompressed" else compression
    with into.writing(), writing(job.place) as session:
        lost, refused = list[Loss](), dict[str, MillstreamError]()
        infos = _infos(session, job.place, names, pattern, lost)
        if not allow_gaps:
            refused |= {loss.log: _unreadable(loss) for loss in lost}
        found, left_over = _begin_all(into, infos, lost, refused, allow_gaps=allow_gaps)
        # Where the archive stands: also after a run that was killed before it moved its cursors.
        follower = StreamCursors(cursor)
        follower.move(session, {name: one.stop for name, one in found.items()})
        total, done = sum(info.end_offset - found[name].stop for name, info in infos.items()), 0
        progress("archive", 0, total)
        while ranges := _next(infos, found, refused, round_records):
            segments, unread = _round(job, into, ranges, infos, codec, allow_gaps)
            refused |= {loss.log: _unreadable(loss) for loss in unread}
            into.add(segments)
            point("archive noted")
            for segment in segments:
                found[segment.log].add(segment)
                lost += segment.lost
                done += segment.stop - segment.start
            follower.move(session, {one.log: one.stop for one in segments})
            if segments:  # a round that could read nothing has nothing new to tell
                progress("archive", done, total)
        told = merge_and_register(
            job.in_tasks, into, list(infos),
            target_bytes=target_file_size, codec=codec, table=table, keep_ms=to_ms(expire),
        )  # fmt: skip
        if truncate:
            for one in [one for one in found.values() if one.log not in refused]:
                one.truncated = _truncate(session, infos[one.log], one.stop, keep)
    if refused:
        raise _refusal(refused, len(found.keys() - refused.keys()))
    told |= {"left_over": left_over, "seconds": job.seconds, "lost": lost}
    return _summary(into, list(found.values()), **told)


def _begin_all(
    into: Archive,
    infos: dict[str, LogInfo],
    lost: list[Loss],
    refused: dict[str, MillstreamError],
    *,
    allow_gaps: bool,
) -> tuple[dict[str, ArchivedLog], int]:
    """Find where the archive of each log goes on; also count the files of broken runs removed.

    A log that cannot go on is moved from `infos` to `refused`, and a gap is added to `lost`.
    """
    found: dict[str, ArchivedLog] = {}
    left_over = 0
    for name, segments in into.segments_of(list(infos)).items():
        info = infos[name]
        left_over += into.clean(name, segments)
        try:
            at = _begin(info, segments, into, allow_gaps=allow_gaps)
        except (Conflict, Truncated) as error:
            refused[name] = error
            del infos[name]
            continue
        found[name] = ArchivedLog(log=name, start=at, stop=at)
        if segments and segments[-1].stop < at:
            lost.append(_gap(info, segments[-1].stop))
    return found, left_over


def _unreadable(loss: Loss) -> CorruptionError:
    """Why a log is not archived from some offset on."""
    return CorruptionError(
        f"{loss.reason}; with allow_gaps it is left out, and the archive notes the gap",
        what="log",
        where=loss.log,
    )


def _refusal(refused: dict[str, MillstreamError], archived: int) -> MillstreamError:
    """The error of the first log that could not be archived; it names the others too."""
    (_, first), *others = refused.items()
    named = ", ".join(repr(name) for name, _ in others[:NAMED_MAX])
    more = f" and {len(others) - NAMED_MAX:,} more" if len(others) > NAMED_MAX else ""
    also = f"; these could not be archived either: {named}{more}" if others else ""
    done = "1 other log was" if archived == 1 else f"{archived:,} other logs were"
    also += f"; {done} archived" if archived else ""
    return type(first)(f"{first.message}{also}", **first.data)


def _summary(into: Archive, archived: list[ArchivedLog], **more: Any) -> ArchiveSummary:
    return ArchiveSummary(
        path=into.path,
        records=sum(one.records for one in archived),
        files=sum(one.files for one in archived),
        bytes=sum(one.bytes for one in archived),
        truncated=sum(one.truncated for one in archived),
        logs=archived,
        **more,
    )


def _check_wishes(compression: str, round_records: int, table: str, target_bytes: int) -> None:
    if table:
        check_table(table)
    if compression not in COMPRESSIONS:
        raise InvalidInput(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if round_records < 1:
        raise InvalidInput(f"a round has at least 1 record, not {round_records}")
    if target_bytes < 0:
        raise InvalidInput(f"a file has a positive number of bytes, not {target_bytes}")


def _infos(
    session: Session, place: Place, names: Sequence[str], pattern: str, lost: list[Loss]
) -> dict[str, LogInfo]:
    """The logs to archive; those that are damaged as a whole are told as lost."""
    chosen = {"subscribePattern": pattern} if pattern else subscription(names)
    chosen["failOnDataLoss"] = "false"
    found = find_logs(session, read_options({**options_of(place), **chosen}), tell=lost.append)
    known = with_wholes([*found, *(one.log for one in lost)])
    for name in names:
        if name not in known:
            raise NotFound(f"there is no log {name!r} to archive", name=name)
    return found


def _begin(info: LogInfo, segments: list[Segment], into: Archive, *, allow_gaps: bool) -> int:
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
        if not allow_gaps:
            raise Truncated(
                f"{_gap(info, at).reason}; with allow_gaps the archive goes on without them",
                log=info.name,
                offset=at,
                start=info.start_offset,
            )
        at = info.start_offset
    return at


def _gap(info: LogInfo, archived: int) -> Loss:
    """What a log forgot before it was archived."""
    start = info.start_offset
    reason = (
        f"log {info.name!r} begins at {start}, but is archived up to {archived} only: the records "
        "between were truncated"
    )
    return Loss(info.name, archived, start, reason)


def _next(
    infos: dict[str, LogInfo],
    found: dict[str, ArchivedLog],
    refused: Mapping[str, object],
    most: int,
) -> list[Range]:
    """The offsets of the next round: log after log, so that small ones get one file each."""
    ranges = []
    for name, info in infos.items():
        at = found[name].stop
        if most and at < info.end_offset and name not in refused:
            ranges.append(Range(name, at, min(info.end_offset, at + most)))
            most -= len(ranges[-1])
    return ranges


def _round(
    job: Job,
    into: Archive,
    ranges: list[Range],
    infos: dict[str, LogInfo],
    codec: str,
    allow_gaps: bool,
) -> tuple[list[Segment], list[Loss]]:
    """Write some offsets of some logs.

    Returns their segments, which do not count yet, and the first loss of each log that is left out
    of this round because gaps are not allowed.
    """
    chosen = bins(ranges, lambda one: bytes_of(one, infos[one.log]), BinSizes())
    staged: dict[str, list[ArchivedFile]] = {one.log: [] for one in ranges}
    lost: dict[str, list[Loss]] = {one.log: [] for one in ranges}
    for written in _write(job, chosen, into.path, codec):
        staged[written.log] += written.files
        lost[written.log] += written.lost
    point("archive staged")
    unread = [] if allow_gaps else [some[0] for some in lost.values() if some]
    left_out = {loss.log for loss in unread}  # what was staged of them is removed with the run
    ranges = [one for one in ranges if one.log not in left_out]
    for one in ranges:
        _check(one, staged[one.log], lost[one.log])
    moves = [
        Move(staged=file.path, log=one.log, date=file.date, name=_name(one, number))
        for one in ranges
        for number, file in enumerate(staged[one.log])
    ]
    places = iter(into.move_in(moves))
    point("archive moved")
    now_ms = SystemClock().wall_ms()
    segments = [
        Segment(
            log=one.log,
            created=wall_ms_of(infos[one.log].created),
            start=one.start,
            stop=one.stop,
            files=[replace(file, path=next(places)) for file in staged[one.log]],
            written=now_ms,
            lost=lost[one.log],
        )
        for one in ranges
    ]
    return segments, unread


def _write(job: Job, chosen: list[Bin[Range]], into: str, codec: str) -> Iterator[WrittenRange]:
    """Let each task write a bin; what they have written, in the order of the bins.

    Tasks tell what they cannot read, so that one damaged log does not end those of others.
    """
    options = job.task_options(typedHeaders=True, failOnDataLoss=False)

    def write(wanted: Bin[Range]) -> bytes:
        from pyspark.sql.types import StructType

        from millstream.spark.archive.folders import folder_of
        from millstream.spark.archive.task import write_ranges
        from millstream.spark.source.layout import arrow_schema, schema_of

        columns = [one for one in schema_of(options) if one.name != "partition"]
        schema = arrow_schema(StructType(columns))
        written = write_ranges(options, wanted, schema, folder=folder_of(into), codec=codec)
        return msgspec.msgpack.encode(list(written))

    for found in job.in_tasks(write, chosen):
        yield from _decode(found)


def _name(one: Range, number: int) -> str:
    return f"{one.start:020}-{one.stop:020}-{number}.parquet"


def _check(wanted: Range, found: list[ArchivedFile], lost: list[Loss]) -> None:
    """Refuse files that do not hold all that they are to hold."""
    rows = sum(file.rows for file in found) + count(lost)
    edges = [edge for one in found for edge in (one.start, one.stop)]
    edges += [edge for one in lost for edge in (one.start, one.stop)]
    ends = min(edges, default=0), max(edges, default=0)
    if rows != len(wanted) or ends != (wanted.start, wanted.stop):
        raise CorruptionError(
            f"Spark wrote {rows:,} rows of log {wanted.log!r}, at offsets {ends[0]} to {ends[1] - 1}, "
            f"where {len(wanted):,} from {wanted.start} on were expected; nothing of it was archived",
            what="archive",
            where=wanted.log,
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
