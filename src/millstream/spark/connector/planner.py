"""The planner: a process beside Spark's driver that answers what queries need to know.

Java starts it once per session and sends a line of JSON for each question. Spark's own way starts a
Python process per question, and the imports of such a process take longer than a small query. What
the planner cannot answer it refuses; Java takes Spark's own way then, which raises the same error.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.errors import InvalidInput
from millstream.spark.options import ReadOptions, read_options
from millstream.spark.source.bins import Range
from millstream.spark.source.layout import check_schema
from millstream.spark.source.queue_reader import QueueReader
from millstream.spark.source.reader import LogReader, ReadSnapshot, snapshot_of
from millstream.spark.source.source import MillstreamSource
from millstream.spark.source.spans import TimeSpan
from millstream.spark.source.table import reading_of

R = TypeVar("R", bound=Range)
ReadFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_pickler: Any = CloudPickleSerializer  # pyspark gives its serializers no types


class QueryCondition(Struct, frozen=True):
    """A comparison of the query: a column with a number, or with texts."""

    column: str
    sign: str = msgspec.field(name="is")
    number: int = 0
    texts: tuple[str, ...] = ()


class PlanQuestion(Struct, frozen=True):
    """What Java asks for a query."""

    operation: str
    options: dict[str, str]
    schema: str = ""
    columns: tuple[str, ...] = ()
    conditions: tuple[QueryCondition, ...] = ()
    snapshot: str | None = None
    """What the first query of the same DataFrame was answered."""
    groups: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()

    def table_schema(self) -> StructType:
        """The columns of the DataFrame."""
        return StructType.fromJson(msgspec.json.decode(self.schema))

    def read_options(self) -> ReadOptions:
        """The options of the read; they, the columns and the conditions are checked."""
        given = {name.lower(): value for name, value in self.options.items()}
        schema = self.table_schema()
        options = read_options(reading_of(given, schema), streaming=False)
        check_schema(schema, options)
        if options.queue and self.conditions:
            raise InvalidInput("Spark applies the conditions on messages of a queue")
        return options


def schema_of(question: PlanQuestion) -> dict[str, Any]:
    """Answer with the existing columns."""
    return {"schema": MillstreamSource(dict(question.options)).schema().json()}


def ready(question: PlanQuestion) -> dict[str, Any]:
    """Answer if the conditions of a query, also that a column is not null, may be left to us."""
    if question.read_options().queue:
        raise InvalidInput("Spark applies the conditions on messages of a queue")
    return {}


def plan(question: PlanQuestion) -> dict[str, Any]:
    """Answer with the function that tasks run, and with the range of each task."""
    options, schema = question.read_options(), question.table_schema()
    columns = StructType([field for field in schema if field.name in question.columns])
    if options.queue:
        reader: DataSourceReader = QueueReader(options, columns)
        partitions = msgspec.json.decode(question.snapshot or "null", type=list[bytes] | None)
        if partitions is None:
            partitions = [_pickled(partition) for partition in reader.partitions()]
        snapshot = msgspec.json.encode(partitions).decode()
    else:
        whole = _snapshot(question, options)
        snapshot = _text(whole)
        ranges = list(_narrowed(whole.ranges, question.conditions, options))
        pieces = list(_narrowed(whole.pieces, question.conditions, options))
        narrowed = ReadSnapshot(pieces, ranges, whole.bytes_per_record)
        reader = LogReader(options, columns, snapshot=narrowed, spans=_spans(question))
        partitions = [_pickled(partition) for partition in reader.partitions()]
    return {
        "snapshot": snapshot,
        "partitions": partitions,
        "function": _pickled((_read_function(reader), columns)),
    }


def aggregate(question: PlanQuestion) -> dict[str, Any]:
    """Answer with counts and offsets of logs, from their metadata."""
    options = question.read_options()
    if options.queue or options.archive or options.filter or not options.fail_on_data_loss:
        raise InvalidInput("only a read of the records themselves can count them")
    if options.mode != "PERMISSIVE":
        raise InvalidInput("only a read of the values knows which of them fit")
    if not set(question.groups) <= {"topic", "partition"}:
        raise InvalidInput("logs are grouped by topic and partition alone")
    snapshot = _snapshot(question, options)
    groups: dict[tuple[Any, ...], list[Range]] = defaultdict(list)
    if not question.groups:
        groups[()] = []
    for range_ in _narrowed(snapshot.ranges, question.conditions, options):
        topic, partition = options.shown(range_.log)
        shown = {"topic": topic, "partition": partition}
        groups[tuple(shown[name] for name in question.groups)].append(range_)
    rows = [
        [*group, *(_measured(measure, ranges) for measure in question.measures)]
        for group, ranges in groups.items()
    ]
    return {"snapshot": _text(snapshot), "rows": rows}


def _measured(measure: str, ranges: list[Range]) -> int | None:
    match measure:
        case "count":
            return sum(map(len, ranges))
        case "min":
            return min((range_.start for range_ in ranges), default=None)
        case "max":
            return max((range_.stop - 1 for range_ in ranges), default=None)
    raise InvalidInput(f"there is no measure {measure!r}")


def _snapshot(question: PlanQuestion, options: ReadOptions) -> ReadSnapshot:
    if question.snapshot is None:
        return snapshot_of(options)
    return msgspec.json.decode(question.snapshot, type=ReadSnapshot)


def _text(snapshot: ReadSnapshot) -> str:
    return msgspec.json.encode(snapshot).decode()


def _narrowed(
    ranges: Iterable[R], conditions: Iterable[QueryCondition], options: ReadOptions
) -> Iterator[R]:
    """Yield what is left of each range by the conditions on topic and offset."""
    for range_ in ranges:
        start, stop = range_.start, range_.stop
        for condition in conditions:
            if condition.column == "topic" and options.shown(range_.log)[0] not in condition.texts:
                stop = start
            elif condition.column == "offset":
                low, high = _bounds(condition)
                start, stop = max(start, low), min(stop, high)
        if start < stop:
            is_whole = (start, stop) == (range_.start, range_.stop)
            yield range_ if is_whole else replace(range_, start=start, stop=stop)


def _bounds(condition: QueryCondition) -> tuple[int, int]:
    """Return the half-open offsets that a comparison keeps."""
    number, everything = condition.number, 1 << 63
    match condition.sign:
        case "<":
            return 0, number
        case "<=":
            return 0, number + 1
        case ">":
            return number + 1, everything
        case ">=":
            return number, everything
    return number, number + 1


def _spans(question: PlanQuestion) -> list[TimeSpan]:
    return [
        TimeSpan(condition.column, condition.sign, condition.number)
        for condition in question.conditions
        if condition.column not in ("topic", "offset")
    ]


def _read_function(reader: DataSourceReader) -> ReadFunction:
    """Return what a task runs: it gets its partition as the only row of a batch."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (batch,) = batches
        partition: InputPartition = _pickler().loads(batch.column(0)[0].as_py())
        yield from reader.read(partition)

    # Spark's worker knows the functions of sources by the name of this module.
    read.__module__ = "pyspark.sql.worker.plan_data_source_read"
    return read


def _pickled(value: Any) -> bytes:
    dumped: bytes = _pickler().dumps(value)
    return dumped


OPERATIONS = {"schema": schema_of, "ready": ready, "plan": plan, "aggregate": aggregate}


def answer(line: bytes) -> bytes:
    """Answer a question; what goes wrong is an answer too."""
    try:
        question = msgspec.json.decode(line, type=PlanQuestion)
        return msgspec.json.encode(OPERATIONS[question.operation](question))
    except Exception as error:  # Java takes Spark's own way, which raises the error for the user
        return msgspec.json.encode({"error": f"{type(error).__name__}: {error}"})


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer questions until there are no more."""
    for line in questions:
        answers.write(answer(line) + b"\n")
        answers.flush()


def main() -> None:
    """Serve standard input and output; other output goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
