"""The task of a read: reads ranges of logs and gives them to Spark as record batches.

With a filter the task examines the metadata of records first, and reads values only around the
records that match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import CorruptionError, MillstreamError, Truncated
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.reading.salvage import behind
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import DecodedBlock, batch_of, batches, joined
from millstream.spark.source.losses import Loss, TellLoss, warn
from millstream.spark.source.planning import lost

if TYPE_CHECKING:
    from millstream.command import Session
    from millstream.filters import Filter

CATCH_UP_MS = 60_000
"""How long a node may take to apply what the one that planned the read had."""


def read_ranges(
    options: ReadOptions, ranges: Sequence[Range], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges as record batches; the store stays open until the last batch."""
    with reading(options.place) as session:
        if options.filter:
            chosen = (_chosen(session, options, range_, schema) for range_ in ranges)
            yield from joined(chain.from_iterable(chosen), schema)
        else:
            values = options.values and "value" in schema.names
            range_blocks = (blocks_of(session, options, range_, values=values) for range_ in ranges)
            blocks = chain.from_iterable(range_blocks)
            trusted = not options.place.is_server
            yield from batches(blocks, schema, trusted=trusted, shown=options.shown)


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
