"""Writes to logs or a queue: tasks stage blocks, the driver's commit publishes them in one go.

Nothing of a job that failed is ever visible. A batch of a stream is published once, however often
Spark repeats it, and so is a batch write that names `txnAppId` and `txnVersion`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.errors import InvalidInput, NotFound
from millstream.limits import Limits
from millstream.queue.commands import DescribeQueue
from millstream.queue.model.own_logs import inbox_of
from millstream.spark.failures import point
from millstream.spark.local.worker import settle
from millstream.spark.options import WriteOptions
from millstream.spark.partitions import RowSpreader
from millstream.spark.place import reading
from millstream.spark.sink.adoption import check_served
from millstream.spark.sink.bucket_staging import BucketStaging, objects_of
from millstream.spark.sink.disk_staging import DiskStaging
from millstream.spark.sink.publishing import LogBlock, Version
from millstream.spark.sink.rows import blocks_by_log, blocks_of, check_columns, rows_by_topic
from millstream.spark.sink.server_staging import ServerStaging
from millstream.spark.sink.staging import Staging, TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TOPIC = "topic"
COLUMNS = ("key", "value", "headers", "timestamp")
ASSIGNED = ("topic", "partition", "offset", "appendTimestamp")
"""Columns of a read that the store assigns. A write may have these columns without values."""


@dataclass
class StagedByTask(WriterCommitMessage):
    """The list of the blocks that a task staged, and their transaction."""

    txn: str
    version: Version | None
    staged: list[Any]


class SparkWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """A batch write, or the writes of a stream: each batch of a query is a transaction."""

    def __init__(self, options: WriteOptions, schema: StructType, *, streaming: bool) -> None:
        self._options = options
        self._names = schema.fieldNames()
        self._streaming = streaming
        self._job = f"job:{secrets.token_hex(8)}"
        if options.place.is_bucket:
            check_served(objects_of(options.place.url))
        check_columns(self._names, (*COLUMNS, *ASSIGNED), ("value",))
        if options.by_topic and TOPIC not in self._names:
            raise InvalidInput(
                "where do the rows go? expected one of the options log (the name of a log), queue "
                "(the name of a queue) and assign=true, or a column topic with the name of each "
                "row's log"
            )
        if options.queue:
            _check_queue(options)
        with RowSpreader(options.place) as spreader:
            self._is_spread = bool(options.log) and spreader.count(options.log) > 0
        if streaming and options.version is not None:
            raise InvalidInput(
                "options txnAppId and txnVersion: are for batch writes; a stream's batches are "
                "known by their query and number"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedByTask:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        version = _batch_of(context) if self._streaming else self._wished()
        txn = self._txn(version)
        task = TaskAttempt(context.partitionId(), context.taskAttemptId())
        by_topic = self._options.by_topic
        named = (name_columns(batch, self._names, by_topic=by_topic) for batch in iterator)
        with RowSpreader(self._options.place) as spreader:
            staged = self._staging().stage(txn, task, self._packed(named, spreader))
        settle()
        point("write")
        return StagedByTask(txn, version, staged)

    def _packed(
        self, batches: Iterable[pa.RecordBatch], spreader: RowSpreader
    ) -> Iterator[LogBlock]:
        """Return packed blocks; a block carries its log unless all rows go to one log."""
        log = self._options.log
        if not self._options.by_topic and not self._is_spread:
            return (("", block) for batch in batches for block in blocks_of(batch, Limits()))
        rows = (
            log_rows
            for batch in batches
            for log_rows in (rows_by_topic(batch) if self._options.by_topic else [(log, batch)])
        )
        return blocks_by_log(chain.from_iterable(starmap(spreader.spread, rows)), Limits())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Publish the staged blocks, unless an earlier attempt published them."""
        tasks = [message for message in messages if isinstance(message, StagedByTask)]
        if len(tasks) != len(messages):
            raise InvalidInput("a task sent no list of what it staged; nothing was published")
        if not tasks:
            return
        options, txn = self._options, tasks[0].txn
        log = inbox_of(options.queue) if options.queue else options.log
        if self._is_spread:
            log = ""  # the blocks name their partitions
        staged = [entry for task in tasks for entry in task.staged]
        point("before commit")
        if staged:
            self._staging().publish(txn, tasks[0].version, log, staged)
        point("after commit")
        self._staging().discard(txn, is_published=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Remove the staged blocks of a failed job."""
        txns = {message.txn for message in messages if isinstance(message, StagedByTask)}
        if not self._streaming:
            txns.add(self._txn(self._wished()))
        for txn in txns:
            self._staging().discard(txn, is_published=False)

    def _staging(self) -> Staging[Any]:
        place = self._options.place
        if place.is_server:
            return ServerStaging(place)
        return BucketStaging(place) if place.is_bucket else DiskStaging(place)

    def _wished(self) -> Version | None:
        """Return the version that the options of a batch write name."""
        number = self._options.version
        return None if number is None else Version(self._options.app_id, number)

    def _txn(self, version: Version | None) -> str:
        return self._job if version is None else f"{version.app}:{version.number}"


def _batch_of(context: TaskContext) -> Version:
    """Return the query and the batch that a task works for."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        raise InvalidInput("Spark does not say which query and batch this is")
    return Version(query, int(batch))


def name_columns(batch: pa.RecordBatch, names: list[str], *, by_topic: bool) -> pa.RecordBatch:
    """Name the columns of a batch, and refuse values that the store assigns."""
    for name in ASSIGNED:
        if name == TOPIC and by_topic:
            continue
        if name in names and batch.column(names.index(name)).null_count < batch.num_rows:
            raise InvalidInput(
                f"the column {name!r} would not be written, because the store or an option says it; "
                "leave it out with select(…)"
            )
    return batch.rename_columns(names)


def _check_queue(options: WriteOptions) -> None:
    with reading(options.place) as session:
        if session.execute(DescribeQueue(options.queue)) is None:
            raise NotFound(
                f"option queue: there is no queue {options.queue!r}; make it first, so that it is "
                "known what becomes of its messages",
                name=options.queue,
            )
