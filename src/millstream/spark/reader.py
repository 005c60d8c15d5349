"""Batch reads of logs, as Spark asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millstream.spark.archived import Piece, plan_archived, read_piece
from millstream.spark.layout import arrow_schema, check_schema
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.planning import Range, plan_batch, split
from millstream.spark.pushdown import Pushed, push
from millstream.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class LogReader(DataSourceReader):
    """Reads logs from where they are now: both ends are fixed when the read is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """The pieces that tasks read."""
        options, pushed = self._options, self._pushed
        archived: list[Piece] = []
        with reading(options.place) as session:
            if options.archive:
                archived, ranges, infos = plan_archived(session, options)
            else:
                ranges, infos = plan_batch(session, options)
        live = split(list(pushed.kept(ranges)), infos, options.min_partitions)
        # Spark takes no pieces at all for one that says nothing.
        pieces = [*pushed.kept(archived), *live] or [Range("", 0, 0)]
        return [InputPartition(one) for one in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One piece, as record batches."""
        wanted, schema = partition.value, arrow_schema(self._schema)
        options = self._options
        if isinstance(wanted, Piece):
            return read_piece(wanted, schema, options.filter)
        return read_range(options, wanted, schema, self._pushed.times) if len(wanted) else iter(())


class PushingLogReader(LogReader):
    """The same where Spark hands over filters; it refuses a source that takes them elsewhere."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Leave out what the filters let us leave out; Spark applies all of them again."""
        self._pushed = push(filters)
        return filters
