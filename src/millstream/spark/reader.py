"""Batch reads of logs, as Spark asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millstream.spark.archived import Piece, kept_pieces, plan_archived, read_piece
from millstream.spark.layout import arrow_schema, check_schema
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.planning import Range, plan_batch, split
from millstream.spark.pushdown import Pushed, push
from millstream.spark.reading import Choice, Task, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RangePartition(InputPartition):
    """One piece of a read: one task's work."""

    def __init__(self, wanted: Range) -> None:
        super().__init__((wanted.log, wanted.start, wanted.stop))

    @property
    def range(self) -> Range:
        """The offsets to be read."""
        return Range(*self.value)


class ArchivePartition(InputPartition):
    """One archived file: one task's work."""

    def __init__(self, log: str, piece: Piece) -> None:
        super().__init__((log, piece.archive, piece.file, piece.start, piece.stop))

    @property
    def log(self) -> str:
        """The log that the file is of."""
        return str(self.value[0])

    @property
    def piece(self) -> Piece:
        """The file, and what to read of it."""
        return Piece(*self.value[1:])


def task_of(options: ReadOptions, pushed: Pushed | None = None) -> Task:
    """How the ranges of a read are to be read."""
    return Task(
        place=options.place,
        fail_on_data_loss=options.fail_on_data_loss,
        values=options.values,
        choice=Choice(pushed.times if pushed else {}, options.filter),
    )


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
        archived: list[ArchivePartition] = []
        with reading(options.place) as session:
            if options.archive:
                plan = plan_archived(session, options)
                ranges, infos = plan.ranges, plan.infos
                archived = [ArchivePartition(*one) for one in kept_pieces(plan, pushed)]
            else:
                ranges, infos = plan_batch(session, options)
        if pushed.topics is not None:
            ranges = [one for one in ranges if one.log in pushed.topics]
        cut = [Range(one.log, *pushed.cut(one.start, one.stop)) for one in ranges]
        pieces = split([one for one in cut if len(one)], infos, options.min_partitions)
        # Spark takes no pieces at all for one that says nothing.
        live = [RangePartition(one) for one in pieces]
        return [*archived, *live] or [RangePartition(Range("", 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One piece, as record batches."""
        if isinstance(partition, ArchivePartition):
            choice = task_of(self._options, self._pushed).choice
            return read_piece(partition.piece, arrow_schema(self._schema), partition.log, choice)
        assert isinstance(partition, RangePartition)
        wanted = partition.range
        if not len(wanted):
            return iter(())
        return read_range(task_of(self._options, self._pushed), wanted, arrow_schema(self._schema))


class PushingLogReader(LogReader):
    """The same where Spark hands over filters; it refuses a source that takes them elsewhere."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Leave out what the filters let us leave out; Spark applies all of them again."""
        self._pushed = push(filters)
        return filters
