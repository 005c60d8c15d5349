"""Batch reads of logs, as Spark asks for them.

A reader takes no filters from Spark. Spark keeps the reader of the last filtered query with its
DataFrame and gives it to later queries without that filter, so records that one query leaves out
would be missing from the next. Options choose what is read; Spark applies every condition itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.spark.options import ReadOptions
from millstream.spark.partitions import bins_by_partition
from millstream.spark.place import reading
from millstream.spark.source.archived import Piece, plan_archived, read_piece
from millstream.spark.source.bins import Bin, BinSizes, Range
from millstream.spark.source.layout import arrow_schema, check_schema
from millstream.spark.source.planning import plan_batch
from millstream.spark.source.spans import TimeSpans
from millstream.spark.source.task import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class ReadSnapshot(Struct, frozen=True):
    """The records of a read: offsets of files of an archive, and of logs."""

    pieces: list[Piece]
    ranges: list[Range]
    bytes_per_record: dict[str, float]

    def bytes_of(self, range_: Range) -> int:
        """Estimate the bytes of a range."""
        if isinstance(range_, Piece):
            return range_.bytes
        return int(self.bytes_per_record[range_.log] * len(range_))


def snapshot_of(options: ReadOptions) -> ReadSnapshot:
    """Look the logs up, once, and fix both bounds of each."""
    pieces: list[Piece] = []
    with reading(options.place) as session:
        if options.archive:
            pieces, ranges, infos = plan_archived(session, options)
        else:
            ranges, infos = plan_batch(session, options)
    return ReadSnapshot(
        pieces, ranges, {name: info.bytes / max(1, len(info)) for name, info in infos.items()}
    )


class LogReader(DataSourceReader):
    """Reads logs up to the ends that they had in the snapshot of the read."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        *,
        snapshot: ReadSnapshot | None = None,
        spans: TimeSpans = (),
    ) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._snapshot = snapshot
        self._spans = spans

    def partitions(self) -> Sequence[InputPartition]:
        """The pieces that tasks read."""
        options = self._options
        snapshot = self._snapshot or snapshot_of(options)
        self._snapshot = None  # tasks get their ranges, and not those of all tasks
        all_ranges: list[Range] = [*snapshot.pieces, *snapshot.ranges]
        sizes = BinSizes(bins_min=options.min_partitions, records_max=options.max_records)
        planned = bins_by_partition(all_ranges, snapshot.bytes_of, sizes)
        # Spark replaces an empty list of partitions by a partition without a value.
        return [InputPartition(ranges) for ranges in planned or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a bin as record batches, archived rows first."""
        bin_ranges: Bin[Range] = partition.value
        schema, options = arrow_schema(self._schema), self._options
        for range_ in bin_ranges:
            if isinstance(range_, Piece):
                yield from read_piece(range_, schema, options)
        live = [range_ for range_ in bin_ranges if not isinstance(range_, Piece)]
        if live:
            yield from read_ranges(options, live, schema, self._spans)
