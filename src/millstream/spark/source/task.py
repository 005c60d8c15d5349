"""The task of a read: reads ranges of logs and gives them to Spark as record batches.

With a filter the task examines the metadata of records first, and reads values only around the
records that match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import CorruptionError, InvalidInput, MillstreamError, Truncated
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.reading.salvage import behind
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import DecodedBlock, batch_of, batches, joined
from millstream.spark.source.losses import Loss, TellLoss, warn
from millstream.spark.source.planning import lost
from millstream.spark.source.spans import TimeSpans, may_hold
from millstream.spark.source.typed_rows import TypedRows, newest_schema

if TYPE_CHECKING:
    from millstream.command import Session
    from millstream.filters import Filter

CATCH_UP_MS = 60_000
"""How long a node may take to apply what the one that planned the read had."""


def read_ranges(
    options: ReadOptions, ranges: Sequence[Range], schema: pa.Schema, spans: TimeSpans = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges as record batches; the store stays open until the last batch.

    Blocks without a record in all the spans of time are left out.
    """
    with reading(options.place) as session:
        if not TypedRows.are_needed(schema, options):
            yield from _stored(session, options, ranges, schema, spans)
            return
        # Rows of small logs share a batch, because each batch costs Spark a fixed time.
        yield from joined(_typed(session, options, ranges, schema, spans), schema)


def _typed(
    session: Session,
    options: ReadOptions,
    ranges: Sequence[Range],
    schema: pa.Schema,
    spans: TimeSpans,
) -> Iterator[pa.RecordBatch]:
    """Yield records with their values as columns."""
    typed = TypedRows(schema, options)
    for log, of_log in groupby(ranges, attrgetter("log")):
        newest = newest_schema(session, log)
        if newest is None:
            raise InvalidInput(
                f"log {log!r} has no schema any more: load it again, or with rawValues=true",
                log=log,
            )
        for rows in _stored(session, options, list(of_log), typed.stored, spans):
            yield typed.of(rows, newest, log)


def _stored(
    session: Session,
    options: ReadOptions,
    ranges: Sequence[Range],
    schema: pa.Schema,
    spans: TimeSpans,
) -> Iterator[pa.RecordBatch]:
    """Yield records with their values as they are stored."""
    if options.filter:
        chosen = (_chosen(session, options, range_, schema) for range_ in ranges)
        yield from joined(chain.from_iterable(chosen), schema)
        return
    values = options.values and "value" in schema.names
    range_blocks = (
        _spanned(session, options, range_, spans, values=values)
        if spans
        else blocks_of(session, options, range_, values=values)
        for range_ in ranges
    )
    blocks = chain.from_iterable(range_blocks)
    yield from batches(blocks, schema, trusted=not options.place.is_server, shown=options.shown)


def blocks_of(
    session: Session,
    options: ReadOptions,
    range_: Range,
    *,
    values: bool,
    tell: TellLoss = warn,
) -> Iterator[RecordBlock]:
    """Blocks of a range, in order; what was truncated or is damaged is an error, or left out."""
    start, size = range_.start, session.limits.read_bytes_max
    while start < range_.stop:
        try:
            blocks = session.execute(
                c.ReadBlocks(range_.log, start, range_.stop, size, values=values)
            )
        except (Truncated, CorruptionError) as error:
            loss = _loss(error, range_, start)
            if options.fail_on_data_loss:
                raise _refused(error, start) from None
            tell(loss)
            start = loss.stop
            continue
        if not blocks and _comes(session, options, range_.log, start):
            continue
        if not blocks:
            _, end = session.execute(c.GetBounds(range_.log))
            gone = lost(range_.log, start, 0, end, "while reading")
            if options.fail_on_data_loss:
                raise gone
            tell(Loss(range_.log, start, range_.stop, gone.message))
            return
        for block in blocks:
            yield block
            start = block.offsets.stop


def _spanned(
    session: Session, options: ReadOptions, range_: Range, spans: TimeSpans, *, values: bool
) -> Iterator[RecordBlock]:
    """Blocks of a range with a record in the spans, found by their metadata alone."""
    for block in blocks_of(session, options, range_, values=False):
        if not may_hold(DecodedBlock(block), spans):
            continue
        if not values:
            yield block
            continue
        inside = Range(block.log, block.offsets.start, block.offsets.stop)
        yield from blocks_of(session, options, inside, values=True)


def _comes(session: Session, options: ReadOptions, log: str, offset: int) -> bool:
    """Whether a record comes that another node had when the read was planned."""
    if options.place.read_level == "strong":
        return False
    return session.execute(c.WaitForOffset(log, offset, CATCH_UP_MS))


def _loss(error: Truncated | CorruptionError, range_: Range, start: int) -> Loss:
    if isinstance(error, Truncated):
        stop = min(range_.stop, max(start + 1, int(error.data["start"])))
    else:
        stop = behind(error, start, range_.stop)
    return Loss(range_.log, start, stop, error.message)


def _refused(error: Truncated | CorruptionError, start: int) -> MillstreamError:
    if isinstance(error, Truncated):
        return lost(error.data["log"], start, error.data["start"], 0, "while reading")
    return CorruptionError(f"{error.message}; failOnDataLoss=false leaves it out", **error.data)


def _chosen(
    session: Session, options: ReadOptions, range_: Range, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    values = options.values and "value" in schema.names
    from millstream.filters import parse  # only reads with a filter pay for its parser

    condition = parse(options.filter)
    for block in blocks_of(session, options, range_, values=False):
        mask = _by_filter(condition, DecodedBlock(block))
        if not any(mask):
            continue
        first = mask.index(True)
        last = len(mask) - mask[::-1].index(True)
        inside = Range(block.log, block.first_offset + first, block.first_offset + last)
        for piece in blocks_of(session, options, inside, values=True) if values else [block]:
            at = piece.first_offset - block.first_offset
            keep = mask[at : at + piece.count]
            rows = batch_of(piece, schema, shown=options.shown)
            yield rows if all(keep) else rows.filter(pa.array(keep))


def _by_filter(condition: Filter, piece: DecodedBlock) -> list[bool]:
    block, metadata = piece.block, piece.metadata
    return [
        bool(matched)
        for matched in condition.match_many(
            piece.visible_headers(),
            keys=metadata.keys(block.skip, block.count),
            timestamps=list(metadata.timestamps(block.skip, block.count)),
            log=block.log,
            valid=metadata.valid(block.skip, block.count),
        )
    ]
