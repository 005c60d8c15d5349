"""The pipeline `archive`: writes logs to Parquet files by log and date, exactly once.

A round takes offsets of each log, lets tasks of Spark write them to staged files, moves the files
to their places, and adds segments to the manifest. The manifest comes last, so that only complete
segments count. A log is truncated only behind the manifest.
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
from millstream.spark.archive.archive import Archive, ArchivedFile, Move, Segment, path_of
from millstream.spark.archive.lake import Registered, check_table
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.shape import FileShape, file_shape
from millstream.spark.archive.task import WrittenRange
from millstream.spark.failures import point
from millstream.spark.options import read_options
from millstream.spark.pipelines.merging import merge_and_register
from millstream.spark.pipelines.target import (
    PipelineRun,
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
    """The result of a run for a log."""

    log: str
    start: int
    stop: int
    """Offsets [start, stop) were archived by this run."""
    files: int = 0
    bytes: int = 0
    lost: int = 0
    """Of those offsets, how many could not be read any more."""
    truncated: int = 0
    """Records that the log deleted after they were archived, by its retention."""

    @property
    def records(self) -> int:
        """How many records were archived."""
        return self.stop - self.start - self.lost

    def add(self, segment: Segment) -> None:
        """Add the numbers of a segment."""
        self.stop = segment.stop
        self.lost += count(segment.lost)
        self.files += len(segment.files)
        self.bytes += sum(file.bytes for file in segment.files)


class ArchiveSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

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
    """Small files that were merged into larger files."""
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
    columns: bool = False,
    partition_by: str = "",
    progress: Tell = quiet,
) -> ArchiveSummary:
    """Archive the new records of logs, named or matched by a regular expression, up to their ends.

    A durable cursor named `cursor` follows the archive, so that *consumed* retention waits for it.
    Afterwards `truncate` lets each log enforce its retention, and `keep` truncates older archived
    records. A log cannot be archived if records were truncated before (`Truncated`), if records are
    damaged (`CorruptionError`), or if it was created again (`Conflict`): it stays unchanged, and the
    run raises the error after the remaining logs are archived. With `allow_gaps` the archive has a
    gap for lost records, and the summary names them. With `table` (iceberg or delta) the archive is
    such a table too, before any log is truncated. With `target_file_size` in bytes, small files of
    a log and partition are merged up to this size, and stay for `expire` seconds, for older
    versions. With `columns` each field of a schema has a column. A column `partition_by` replaces the
    date of the append.
    """
    job, into = PipelineRun(spark, store, progress), Archive(path)
    names = _chosen(logs, pattern)
    _check_wishes(compression, round_records, table, target_file_size)
    codec = "none" if compression == "uncompressed" else compression
    with into.writing(), writing(job.place) as session:
        infos = _infos(session, job.place, names, pattern, lost := list[Loss]())
        refused = _all_unreadable([] if allow_gaps else lost)
        shape = file_shape(session, infos, columns=columns, by=partition_by, table=bool(table))
        archived, left_over = _begin_all(into, infos, lost, refused, shape, allow_gaps=allow_gaps)
        # A killed run may not have moved its cursors: they follow the archive now.
        follower = StreamCursors(cursor)
        follower.move(session, {name: log_.stop for name, log_ in archived.items()})
        total = sum(info.end_offset - archived[name].stop for name, info in infos.items())
        progress("archive", 0, total)
        while ranges := _next(infos, archived, refused, round_records):
            segments, unread = _round(job, into, ranges, infos, codec, shape, allow_gaps)
            refused |= _all_unreadable(unread)
            into.add(segments)
            point("archive noted")
            for segment in segments:
                archived[segment.log].add(segment)
                lost += segment.lost
            follower.move(session, {log_.log: log_.stop for log_ in segments})
            if segments:  # a round that could read nothing has nothing new to tell
                progress(
                    "archive", sum(log_.stop - log_.start for log_ in archived.values()), total
                )
        results = merge_and_register(
            job.in_tasks, into, list(infos), target_bytes=target_file_size, codec=codec,
            table=table, layout=shape.layout, keep_ms=to_ms(expire),
        )  # fmt: skip
        for log_ in [log_ for log_ in archived.values() if truncate and log_.log not in refused]:
            log_.truncated = _truncate(session, infos[log_.log], log_.stop, keep)
    if refused:
        raise _refusal(refused, len(archived.keys() - refused.keys()))
    results |= {"left_over": left_over, "seconds": job.seconds, "lost": lost}
    return _summary(into, list(archived.values()), **results)


def _chosen(logs: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Return the names of logs, each once; none if a pattern chooses the logs."""
    if bool(logs) == bool(pattern):
        raise InvalidInput("expected either names of logs or a pattern, to say what to archive")
    return check_names(logs)


def _begin_all(
    into: Archive,
    infos: dict[str, LogInfo],
    lost: list[Loss],
    refused: dict[str, MillstreamError],
    shape: FileShape,
    *,
    allow_gaps: bool,
) -> tuple[dict[str, ArchivedLog], int]:
    """Find where the archive of each log goes on; also count the files of broken runs removed.

    A log that cannot go on is moved from `infos` to `refused`, and a gap is added to `lost`.
    """
    archived: dict[str, ArchivedLog] = {}
    left_over = 0
    for name, segments in into.segments_of(list(infos)).items():
        info = infos[name]
        _check_label(into, name, segments, shape.layout.by)
        left_over += into.clean(name, segments)
        try:
            at = _begin(info, segments, into, allow_gaps=allow_gaps)
        except (Conflict, Truncated) as error:
            refused[name] = error
            del infos[name]
            continue
        archived[name] = ArchivedLog(log=name, start=at, stop=at)
        if segments and segments[-1].stop < at:
            lost.append(_gap(info, segments[-1].stop))
    return archived, left_over


def _check_label(into: Archive, log: str, segments: list[Segment], by: PartitionBy) -> None:
    """Refuse to mix two kinds of partitions in the archive of a log."""
    file = next((file for segment in segments for file in segment.files), None)
    label = by.directory("").rpartition("=")[0]
    stored = label if file is None else file.path.split("/")[-2].partition("=")[0]
    if stored != label:
        raise InvalidInput(
            f"log {log!r} is archived to {into.path} by {stored.removeprefix('by_')}, not by "
            f"{label.removeprefix('by_')}; choose another path, or the same partitions"
        )


def _all_unreadable(losses: Sequence[Loss]) -> dict[str, MillstreamError]:
    """Return the error of each log with a loss."""
    return {loss.log: _unreadable(loss) for loss in losses}


def _unreadable(loss: Loss) -> CorruptionError:
    """Why a log is not archived from some offset on."""
    return CorruptionError(
        f"{loss.reason}; with allow_gaps it is left out, and the archive notes the gap",
        what="log",
        where=loss.log,
    )


def _refusal(refused: dict[str, MillstreamError], archived: int) -> MillstreamError:
    """Return the error of the first log that could not be archived, and name the others."""
    (_, first), *remaining = refused.items()
    named = ", ".join(repr(name) for name, _ in remaining[:NAMED_MAX])
    omitted = f" and {len(remaining) - NAMED_MAX:,} more" if len(remaining) > NAMED_MAX else ""
    also = f"; these could not be archived either: {named}{omitted}" if remaining else ""
    done = "1 other log was" if archived == 1 else f"{archived:,} other logs were"
    also += f"; {done} archived" if archived else ""
    return type(first)(f"{first.message}{also}", **first.data)


def _summary(into: Archive, archived: list[ArchivedLog], **results: Any) -> ArchiveSummary:
    return ArchiveSummary(
        path=into.path,
        records=sum(log_.records for log_ in archived),
        files=sum(log_.files for log_ in archived),
        bytes=sum(log_.bytes for log_ in archived),
        truncated=sum(log_.truncated for log_ in archived),
        logs=archived,
        **results,
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
    infos = find_logs(session, read_options({**options_of(place), **chosen}), tell=lost.append)
    names_found = with_wholes([*infos, *(loss.log for loss in lost)])
    for name in names:
        if name not in names_found:
            raise NotFound(f"there is no log {name!r} to archive", name=name)
    return infos


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
    """Return the offsets that a log deleted before they were archived."""
    start = info.start_offset
    reason = (
        f"log {info.name!r} begins at {start}, but is archived up to {archived} only: the records "
        "between were truncated"
    )
    return Loss(info.name, archived, start, reason)


def _next(
    infos: dict[str, LogInfo],
    archived: dict[str, ArchivedLog],
    refused: Mapping[str, object],
    records_left: int,
) -> list[Range]:
    """Return the offsets of the next round, log after log, so that a small log gets one file."""
    ranges = []
    for name, info in infos.items():
        at = archived[name].stop
        if records_left and at < info.end_offset and name not in refused:
            ranges.append(Range(name, at, min(info.end_offset, at + records_left)))
            records_left -= len(ranges[-1])
    return ranges


def _round(
    job: PipelineRun,
    into: Archive,
    ranges: list[Range],
    infos: dict[str, LogInfo],
    codec: str,
    shape: FileShape,
    allow_gaps: bool,
) -> tuple[list[Segment], list[Loss]]:
    """Write the offsets of a round.

    Returns the segments, which do not count yet. Also returns the first loss of each log that this
    round leaves out because gaps are not allowed.
    """
    chosen = bins(ranges, lambda range_: bytes_of(range_, infos[range_.log]), BinSizes())
    staged: dict[str, list[ArchivedFile]] = {range_.log: [] for range_ in ranges}
    lost: dict[str, list[Loss]] = {range_.log: [] for range_ in ranges}
    for written in _write(job, chosen, into.path, codec, shape):
        staged[written.log] += written.files
        lost[written.log] += written.lost
    point("archive staged")
    unread = [] if allow_gaps else [losses[0] for losses in lost.values() if losses]
    left_out = {loss.log for loss in unread}  # what was staged of them is removed with the run
    ranges = [range_ for range_ in ranges if range_.log not in left_out]
    for range_ in ranges:
        _check(range_, staged[range_.log], lost[range_.log])
    moves = [
        Move(
            staged=file.path,
            target=path_of(range_.log, shape.layout.by, file, _name(range_, number)),
        )
        for range_ in ranges
        for number, file in enumerate(staged[range_.log])
    ]
    places = iter(into.move_in(moves))
    point("archive moved")
    now_ms = SystemClock().wall_ms()
    segments = [
        Segment(
            log=range_.log,
            created=wall_ms_of(infos[range_.log].created),
            start=range_.start,
            stop=range_.stop,
            files=[replace(file, path=next(places)) for file in staged[range_.log]],
            written=now_ms,
            lost=lost[range_.log],
        )
        for range_ in ranges
    ]
    return segments, unread


def _write(
    job: PipelineRun, chosen: list[Bin[Range]], into: str, codec: str, shape: FileShape
) -> Iterator[WrittenRange]:
    """Let each task write a bin; yield the written ranges in the order of the bins.

    Tasks report unreadable records instead of failing, so that a damaged log does not stop other
    logs.
    """
    options = job.task_options(typedHeaders=True, failOnDataLoss=False)
    by, typed = shape.layout.by, shape.typed

    def write(ranges: Bin[Range]) -> bytes:
        from millstream.spark.archive.folders import folder_of
        from millstream.spark.archive.lake_columns import archive_schema
        from millstream.spark.archive.task import write_ranges

        logs = {range_.log for range_ in ranges}
        written = write_ranges(
            options, ranges, archive_schema(), folder=folder_of(into), codec=codec, by=by,
            typed={log: columns for log, columns in typed.items() if log in logs},
        )  # fmt: skip
        return msgspec.msgpack.encode(list(written))

    for answer in job.in_tasks(write, chosen):
        yield from _decode(answer)


def _name(range_: Range, number: int) -> str:
    return f"{range_.start:020}-{range_.stop:020}-{number}.parquet"


def _check(range_: Range, files: list[ArchivedFile], lost: list[Loss]) -> None:
    """Refuse files that lack rows of their range."""
    rows = sum(file.rows for file in files) + count(lost)
    edges = [edge for extent in files for edge in (extent.start, extent.stop)]
    edges += [edge for extent in lost for edge in (extent.start, extent.stop)]
    ends = min(edges, default=0), max(edges, default=0)
    if rows != len(range_) or ends != (range_.start, range_.stop):
        raise CorruptionError(
            f"Spark wrote {rows:,} rows of log {range_.log!r}, at offsets {ends[0]} to {ends[1] - 1}, "
            f"where {len(range_):,} from {range_.start} on were expected; nothing of it was archived",
            what="archive",
            where=range_.log,
        )


def _truncate(session: Session, before: LogInfo, archived: int, keep: Seconds | None) -> int:
    """Truncate a log as far as its retention and `keep` allow, only behind the archive.

    The result includes records that housekeeping deleted since the run began, behind the same
    cursor.
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
