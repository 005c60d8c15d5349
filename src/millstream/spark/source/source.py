"""`format("millstream")`: the data source that Spark finds by the package `pyspark_millstream`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from millstream.errors import CannotOpen, InvalidInput
from millstream.spark.local.worker import settle
from millstream.spark.options import read_options, write_options
from millstream.spark.source.table import check_target, columns_of, reading_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

    from millstream.spark.sink.assignment import Assigner
    from millstream.spark.sink.writer import SparkWriter

STREAMS_MIN = (4, 2)
"""From this version on Spark tells a source how much a batch may take."""

_NO_OVERWRITE = (
    'a log or queue cannot be overwritten: write with .mode("append"); to forget old records '
    "truncate the log"
)
_NO_COMPLETE = (
    'a log or queue cannot be overwritten, as outputMode("complete") asks for: take outputMode('
    '"append"), or outputMode("update") with foreachBatch, as docs/SPARK.md shows'
)


class MillstreamSource(DataSource):
    """Logs and queues of a store as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_source()
        super().__init__({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """As it is written in `format(…)` and `USING …`."""
        return "millstream"

    def schema(self) -> StructType:
        """The columns of a read, or of a table of SQL: the first that Spark asks for."""
        settle()
        return columns_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from millstream.spark.source.queue_reader import QueueReader
        from millstream.spark.source.reader import LogReader

        options = read_options(reading_of(self.options, schema), streaming=False)
        if options.queue:
            return QueueReader(options, schema)
        return LogReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream."""
        check_streams()
        from millstream.spark.source.stream import LogStreamReader

        options = read_options(reading_of(self.options, schema), streaming=True)
        return LogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        check_target(self.options)
        return self._writer(schema, overwrite, streaming=False)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A stream's writes."""
        return self._writer(schema, overwrite, streaming=True)

    def _writer(
        self, schema: StructType, overwrite: bool, *, streaming: bool
    ) -> Assigner | SparkWriter:
        from millstream.spark.sink.assignment import Assigner
        from millstream.spark.sink.writer import SparkWriter

        if overwrite:
            raise InvalidInput(_NO_COMPLETE if streaming else _NO_OVERWRITE)
        options = write_options(self.options)
        if options.assigns:
            return Assigner(options, schema)
        return SparkWriter(options, schema, streaming=streaming)


def check_streams() -> None:
    """Raise `CannotOpen` where Spark is too old to stream from a source that minds its limits."""
    if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < STREAMS_MIN:
        raise CannotOpen(f"this is Spark {pyspark.__version__}; readStream needs 4.2 or newer")


def check_source() -> None:
    """Raise `CannotOpen` with advice where pyarrow is missing; a cluster needs it on every node."""
    if find_spec("pyarrow") is None:
        raise CannotOpen(
            "the Spark source hands records over in Arrow's form, and pyarrow is not installed "
            "here; on every machine that runs Spark: pip install 'millstream[spark]'"
        )
