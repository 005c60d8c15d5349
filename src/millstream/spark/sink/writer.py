"""Writes to logs or a queue: tasks stage blocks, the driver's commit publishes them in one go.

Nothing of a job that failed is ever visible. A batch of a stream is published once, however often
Spark repeats it, and so is a batch write that names `txnAppId` and `txnVersion`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.embedded.session import EmbeddedSession
from millstream.errors import InvalidInput, MillstreamError, NotFound
from millstream.limits import Limits
from millstream.queue.commands import DescribeQueue
from millstream.queue.rules.sources import inbox_of
from millstream.spark.failures import point
from millstream.spark.local.worker import settle
from millstream.spark.options import WriteOptions
from millstream.spark.partitions import RowSpreader
from millstream.spark.place import check_here, reading, writing
from millstream.spark.sink import object_staging, staging
from millstream.spark.sink import upload as uploading
from millstream.spark.sink.adoption import Asking, check_served
from millstream.spark.sink.object_staging import objects_of
from millstream.spark.sink.publishing import Version, publish
from millstream.spark.sink.rows import blocks_by_log, blocks_of, check_columns, rows_by_topic
from millstream.spark.sink.staging import LogBlock, StagedFile
from millstream.spark.sink.upload import SentPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TOPIC = "topic"
COLUMNS = ("key", "value", "headers", "timestamp")
ASSIGNED = ("topic", "partition", "offset", "appendTimestamp")
"""Columns of a read that a store assigns: they may be there, without a value."""


@dataclass
class StagedByTask(WriterCommitMessage):
    """What one task staged, and for which transaction."""

    txn: str
    version: Version | None
    files: list[StagedFile]
    parts: list[SentPart]


class SparkWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """A batch write, or a stream's writes: each batch is a transaction of its query."""

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
        partition, attempt = context.partitionId(), context.taskAttemptId()
        by_topic = self._options.by_topic
        named = (name_columns(batch, self._names, by_topic=by_topic) for batch in iterator)
        staged = StagedByTask(txn, version, [], [])
        place = self._options.place
        with RowSpreader(place) as spreader:
            packed = self._packed(named, spreader)
            if place.is_server:
                staged.parts = uploading.send(
                    place, txn, packed, partition=partition, attempt=attempt
                )
            elif place.is_bucket:
                objects, task = objects_of(place.url), f"{partition}-{attempt}"
                staged.files = [object_staging.stage(objects, txn, task, packed, Limits())]
                settle()
            else:
                check_here(place)
                task = f"{partition}-{attempt}"
                staged.files = [staging.stage(place.url, txn, task, packed, Limits())]
                settle()
        point("write")
        return staged

    def _packed(
        self, batches: Iterable[pa.RecordBatch], spreader: RowSpreader
    ) -> Iterator[LogBlock]:
        """Blocks, each with its log unless all have the same."""
        log = self._options.log
        if not self._options.by_topic and not self._is_spread:
            return (("", block) for batch in batches for block in blocks_of(batch, Limits()))
        rows = (
            one
            for batch in batches
            for one in (rows_by_topic(batch) if self._options.by_topic else [(log, batch)])
        )
        return blocks_by_log(chain.from_iterable(starmap(spreader.spread, rows)), Limits())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Publish what the tasks staged, unless it was published before."""
        found = [message for message in messages if isinstance(message, StagedByTask)]
        if len(found) != len(messages):
            raise InvalidInput("a task sent no list of what it staged; nothing was published")
        if not found:
            return
        options, txn = self._options, found[0].txn
        log = inbox_of(options.queue) if options.queue else options.log
        if self._is_spread:
            log = ""  # each block names its partition
        files = [one for message in found for one in message.files if one.blocks]
        parts = [one for message in found for one in message.parts]
        point("before commit")
        if parts:
            uploading.commit(options.place, txn, log, parts)
        elif files and options.place.is_bucket:
            Asking(objects_of(options.place.url)).adopt(txn, found[0].version, log, files)
        elif files:
            with writing(options.place) as session:
                assert isinstance(session, EmbeddedSession)
                publish(session, options.place.url, log, files, found[0].version)
        point("after commit")
        self._discard(txn)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """A job failed: what its tasks staged is of no use."""
        place = self._options.place
        txns = {message.txn for message in messages if isinstance(message, StagedByTask)}
        if not self._streaming:
            txns.add(self._txn(self._wished()))
        for txn in txns:
            if not place.is_server:
                self._discard(txn)
                continue
            with suppress(MillstreamError):  # the server forgets it by itself, later
                uploading.abandon(place, txn)

    def _discard(self, txn: str) -> None:
        """What was staged is not needed any more; a server forgets it by itself."""
        place = self._options.place
        if place.is_bucket:
            with suppress(MillstreamError):  # the writer of the bucket removes it, later
                object_staging.discard(objects_of(place.url), txn)
        elif not place.is_server:
            staging.discard(place.url, txn)

    def _wished(self) -> Version | None:
        """Which transaction a batch write is, if its options say so."""
        number = self._options.version
        return None if number is None else Version(self._options.app_id, number)

    def _txn(self, version: Version | None) -> str:
        return self._job if version is None else f"{version.app}:{version.number}"


def _batch_of(context: TaskContext) -> Version:
    """Which batch of which query a task works for."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        raise InvalidInput("Spark does not say which query and batch this is")
    return Version(query, int(batch))


def name_columns(batch: pa.RecordBatch, names: list[str], *, by_topic: bool) -> pa.RecordBatch:
    """Rows under the names of their columns."""
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
