"""`format("millstream")`: the data source that Spark finds by the package `pyspark_millstream`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from millstream.spark.installed import check_source, check_streams
from millstream.spark.options import read_options, write_options
from millstream.spark.table import (
    columns_of,
    is_table,
    options_of,
    reading_of,
    table_schema,
    target_of,
)
from millstream.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class MillstreamSource(DataSource):
    """Logs and queues of a store as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_source()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """As it is written in `format(…)` and `USING …`."""
        return "millstream"

    def schema(self) -> str | StructType:
        """The columns of a read, or of a table of SQL: the first that Spark asks for."""
        settle()
        if is_table(self.options):
            return table_schema(self.options)
        return columns_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from millstream.spark.queue_reader import QueueReader
        from millstream.spark.reader import LogReader, PushingLogReader

        options = read_options(self._reading(schema), streaming=False)
        if options.queue:
            return QueueReader(options, schema)
        kind = PushingLogReader if _takes_filters() else LogReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream."""
        check_streams()
        from millstream.spark.stream import LogStreamReader

        return LogStreamReader(read_options(self._reading(schema), streaming=True), schema)

    def _reading(self, schema: StructType) -> dict[str, str]:
        return reading_of(options_of(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from millstream.spark.assigning import BatchAssigner
        from millstream.spark.writer import BatchWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        options = write_options(target_of(self.options))
        return BatchAssigner(options, schema) if options.assigns else BatchWriter(options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A stream's writes."""
        from millstream.spark.assigning import StreamAssigner
        from millstream.spark.writer import StreamWriter, refuse_overwrite

        refuse_overwrite(overwrite)
        options = write_options(self.options)
        return StreamAssigner(options, schema) if options.assigns else StreamWriter(options, schema)


def _takes_filters() -> bool:
    """Whether Spark asks for a reader that takes filters: it does so in a worker of its own."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER
