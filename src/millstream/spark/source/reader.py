"""Batch reads of logs, as Spark asks for them.

A reader takes no filters from Spark. Spark keeps the reader of the last filtered query with its
DataFrame and gives it to later queries without that filter, so records that one query leaves out
would be missing from the next. Options choose what is read; Spark applies every condition itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.spark.options import ReadOptions
from millstream.spark.partitions import bins_by_partition
from millstream.spark.place import reading
from millstream.spark.source.archived import Piece, plan_archived, read_piece
from millstream.spark.source.bins import Bin, BinSizes, Range
from millstream.spark.source.layout import arrow_schema, check_schema
from millstream.spark.source.planning import bytes_of, plan_batch
from millstream.spark.source.task import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class LogReader(DataSourceReader):
    """Reads logs up to their present ends: the plan of the read fixes both bounds of each log."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The pieces that tasks read."""
        options = self._options
        archived: list[Piece] = []
        with reading(options.place) as session:
            if options.archive:
                archived, ranges, infos = plan_archived(session, options)
            else:
                ranges, infos = plan_batch(session, options)

        def size(range_: Range) -> int:
            return (
                range_.bytes if isinstance(range_, Piece) else bytes_of(range_, infos[range_.log])
            )

        all_ranges: list[Range] = [*archived, *ranges]
        sizes = BinSizes(bins_min=options.min_partitions, records_max=options.max_records)
        # Spark replaces an empty list of partitions by a partition without a value.
        return [
            InputPartition(range_) for range_ in bins_by_partition(all_ranges, size, sizes) or [()]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a bin as record batches, archived rows first."""
        bin_ranges: Bin[Range] = partition.value
        schema, options = arrow_schema(self._schema), self._options
        for range_ in bin_ranges:
            if isinstance(range_, Piece):
                yield from read_piece(range_, schema, options)
        live = [range_ for range_ in bin_ranges if not isinstance(range_, Piece)]
        if live:
            yield from read_ranges(options, live, schema)
