"""The option `archive`: an archive and the live log behind it, read as one table.

What is archived is read from its files, and the log from there on: it is truncated only behind the
archive, so nothing that was planned can vanish, and no offset is read twice.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from millstream.errors import (
    CannotOpen,
    Conflict,
    CorruptionError,
    InvalidInput,
    NotFound,
    StoreError,
)
from millstream.filters import parse
from millstream.record import wall_ms_of
from millstream.spark.archive.archive import Archive, Segment
from millstream.spark.archive.folders import folder_of
from millstream.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from millstream.spark.row_filter import FilterRows
from millstream.spark.sink.rows import headers_of
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import ROWS_PER_BATCH, header_column
from millstream.spark.source.planning import find_logs, lost, with_wholes

if TYPE_CHECKING:
    from millstream.command import Session
    from millstream.record import LogInfo


class Piece(Range, frozen=True):
    """A range of offsets in an archived file."""

    archive: str
    path: str
    """Seen from the archive."""
    bytes: int


def plan_archived(
    session: Session, options: ReadOptions
) -> tuple[list[Piece], list[Range], dict[str, LogInfo]]:
    """What is read from files and what from logs, where the beginnings of logs are archived."""
    archive = Archive(options.archive)
    archive.check()
    for positions, bound in ((options.starting, "starting"), (options.ending, "ending")):
        if positions.time is not None or positions.times:
            raise InvalidInput(
                f"option {bound}Timestamp: does not go with the option archive; filter the column "
                "appendTimestamp instead"
            )
    infos = find_logs(session, options)
    planned: list[Range] = []
    wholes = with_wholes(infos) - set(infos)
    names = [name for name in dict.fromkeys((*options.logs, *infos)) if name not in wholes]
    for name, segments in archive.segments_of(names).items():
        info = infos.get(name)
        if info is None and not segments and options.fail_on_data_loss:
            raise NotFound(
                f"option subscribe: there is no log {name!r}, neither in the store nor in the "
                "archive; with failOnDataLoss=false it is taken for an empty one",
                name=name,
            )
        planned += _plan_log(archive, segments, name, info, options)
    pieces = [planned_range for planned_range in planned if isinstance(planned_range, Piece)]
    return (
        pieces,
        [planned_range for planned_range in planned if not isinstance(planned_range, Piece)],
        infos,
    )


def _plan_log(
    archive: Archive,
    segments: list[Segment],
    name: str,
    info: LogInfo | None,
    options: ReadOptions,
) -> Iterator[Range]:
    if info is not None and segments and segments[-1].created != wall_ms_of(info.created):
        raise Conflict(
            f"option archive: {archive.path} holds another log {name!r}, which was deleted since; "
            "read one of them without the other"
        )
    seam = segments[-1].stop if segments else (info.start_offset if info else 0)
    end = info.end_offset if info else seam
    first = segments[0].start if segments else seam
    start = _bound(options.starting, name, earliest=first, latest=end)
    stop = _bound(options.ending, name, earliest=first, latest=end)
    if options.fail_on_data_loss:
        _check_whole(segments, name, info, start, min(stop, end))
    for segment in segments:
        for file in segment.files:
            low, high = max(start, file.start), min(stop, file.stop)
            if low < high:
                size = file.bytes * (high - low) // max(1, file.stop - file.start)
                yield Piece(name, low, high, archive.path, file.path, size)
    if info is not None:
        live = Range(name, max(start, seam, info.start_offset), min(stop, info.end_offset))
        if live.start < live.stop:
            yield live


def _bound(positions: Positions, name: str, *, earliest: int, latest: int) -> int:
    offset = positions.offsets.get(name, positions.default)
    return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


def _check_whole(
    segments: list[Segment], name: str, info: LogInfo | None, start: int, stop: int
) -> None:
    """Refuse a read with a gap in it."""
    for loss in (gap for segment in segments for gap in segment.lost):
        if loss.start < stop and start < loss.stop:
            raise CorruptionError(
                f"option archive: offsets {loss.start} to {loss.stop - 1} of log {name!r} could not "
                f"be archived: {loss.reason}; failOnDataLoss=false leaves them out",
                what="archive",
                where=name,
            )
    at = start
    for segment in segments:
        if segment.start <= at < segment.stop:
            at = segment.stop
    if at < stop and info is not None and info.start_offset <= at:
        at = info.end_offset
    if at < stop:
        later = [segment.start for segment in segments if segment.start > at]
        if info is not None and info.start_offset > at:
            later.append(info.start_offset)
        raise lost(name, at, min(later, default=stop), stop, "option archive")


def read_piece(piece: Piece, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one archived file as record batches."""
    condition = options.filter
    columns = [name for name in schema.names if name not in ("topic", "partition")]
    needed = dict.fromkeys((*columns, "offset"))
    if condition:
        needed |= dict.fromkeys(("key", "timestamp", "headers"))
        if "_value" in parse(condition).fields:
            needed |= {"value": None}
    folder = folder_of(piece.archive)
    where = folder.uri(piece.path)
    try:
        with parquet.ParquetFile(folder.opened(piece.path)) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=list(needed)):
                rows = _kept(batch, piece, condition)
                if rows.num_rows:
                    yield _as(rows, schema, options.shown(piece.log))
    except (OSError, StoreError) as error:
        raise CannotOpen(
            f"option archive: {where} cannot be read on {platform.node()}: {error}; every "
            "machine that runs tasks needs the archive under the same path",
            path=where,
        ) from None


def _kept(batch: pa.RecordBatch, piece: Piece, condition: str) -> pa.RecordBatch:
    offsets = batch.column("offset")
    ends: Any = pc.min_max(offsets)
    if ends["min"].as_py() < piece.start or ends["max"].as_py() >= piece.stop:
        inside = pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.stop))
        batch = batch.filter(inside)
    if not condition or not batch.num_rows:
        return batch
    return batch.filter(FilterRows(batch, piece.log).matches(parse(condition)))


def _as(batch: pa.RecordBatch, schema: pa.Schema, shown: tuple[str, int]) -> pa.RecordBatch:
    """The columns that Spark asks for, of the types that it asks for."""
    columns = []
    topic, partition = shown
    for field in schema:
        if field.name == "topic":
            columns.append(pa.repeat(pa.scalar(topic, field.type), batch.num_rows))
        elif field.name == "partition":
            columns.append(pa.repeat(pa.scalar(partition, field.type), batch.num_rows))
        else:
            column = batch.column(field.name)
            if field.name == "headers" and not pa.types.is_map(field.type):
                plain = [headers.plain() for headers in headers_of(column)]
                column = header_column(plain, field.type)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
