"""Writes to a log or a queue: tasks stage blocks, the driver's commit publishes them in one go.

Nothing of a job that failed is ever visible. A batch of a stream is published once, however often
Spark repeats it, and so is a batch write that names `txnAppId` and `txnVersion`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.embedded import EmbeddedSession
from millstream.errors import InvalidInput, MillstreamError, NotFound
from millstream.limits import Limits
from millstream.queue.commands import DescribeQueue
from millstream.queue.rules.sources import inbox_of
from millstream.spark import staging, uploading
from millstream.spark.failures import point
from millstream.spark.options import WriteOptions
from millstream.spark.place import check_here, reading, writing
from millstream.spark.publishing import Version, publish
from millstream.spark.rows import blocks_of, check_columns
from millstream.spark.staging import StagedFile, Stamp
from millstream.spark.uploading import SentPart
from millstream.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("key", "value", "headers", "timestamp")
ASSIGNED = ("topic", "partition", "offset", "appendTimestamp")
"""Columns of a read that a store assigns: they may be there, without a value."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged, and for which transaction."""

    txn: str
    app: str
    files: list[StagedFile]
    parts: list[SentPart]


def refuse_overwrite(overwrite: bool) -> None:
    """A log is only ever added to."""
    if overwrite:
        raise InvalidInput(
            'a log or queue cannot be overwritten: write with .mode("append"); to forget old '
            "records truncate the log"
        )


class _Writer:
    """What both kinds of writers share."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._names = schema.fieldNames()
        check_columns(self._names, (*COLUMNS, *ASSIGNED), ("value",))
        if options.queue:
            _check_queue(options)

    def _stage(self, txn: str, app: str, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        options, context = self._options, TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        packed = (
            block for batch in rows for block in blocks_of(_named(batch, self._names), Limits())
        )
        place = options.place
        if place.is_server:
            parts = uploading.send(place, txn, packed, partition=partition, attempt=attempt)
            point("write")
            return Staged(txn, app, [], parts)
        check_here(place)
        stamp = Stamp(txn, partition, attempt)
        staged = staging.stage(place.url, stamp, packed, Limits())
        settle()
        point("write")
        return Staged(txn, app, [staged], [])

    def _publish(self, found: Sequence[Staged], version: Version | None) -> None:
        if not found:
            return
        options, txn = self._options, found[0].txn
        log = inbox_of(options.queue) if options.queue else options.log
        files = [one for message in found for one in message.files if one.blocks]
        parts = [one for message in found for one in message.parts]
        point("before commit")
        if parts:
            uploading.commit(options.place, txn, log, parts)
        elif files:
            with writing(options.place) as session:
                assert isinstance(session, EmbeddedSession)
                publish(session, options.place.url, log, files, version)
        point("after commit")
        if not options.place.is_server:
            staging.discard(options.place.url, txn)

    def _forget(self, found: Sequence[WriterCommitMessage | None]) -> None:
        """A job failed: what its tasks staged is of no use."""
        place = self._options.place
        for message in found:
            if not isinstance(message, Staged):
                continue
            for one in message.files:
                staging.drop(place.url, one)
            if message.parts:
                with suppress(MillstreamError):  # the server forgets it by itself, later
                    uploading.abandon(place, message.txn)
                return


def _named(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Rows under the names of their columns."""
    for name in ASSIGNED:
        if name in names and batch.column(at := names.index(name)).null_count < batch.num_rows:
            raise InvalidInput(
                f"the column {name!r} would not be written, because the store assigns it; leave it "
                f"out with select(…): {batch.column(at)[0]}"
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


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._job = secrets.token_hex(8)
        version = options.version
        self._version = None if version is None else Version(options.app_id, version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        return self._stage(self._txn(), self._options.app_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        self._publish(_all(messages), self._version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what the tasks staged."""
        self._forget(messages)
        if not self._options.place.is_server:
            staging.discard(self._options.place.url, self._txn())

    def _txn(self) -> str:
        if self._version is None:
            return f"job:{self._job}"
        return f"{self._version.app}:{self._version.number}"


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream's writes: each batch is a transaction of its query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.version is not None:
            raise InvalidInput(
                "options txnAppId and txnVersion: are for batch writes; a stream's batches are "
                "known by their query and number"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task of one batch."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise InvalidInput("Spark does not say which query and batch this is")
        return self._stage(f"{query}:{batch}", query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, unless it was published before."""
        found = _all(messages)
        if found:
            self._publish(found, Version(found[0].app, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget what the tasks of a batch staged."""
        self._forget(messages)


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Spark commits only when every task has answered."""
    found = [message for message in messages if isinstance(message, Staged)]
    if len(found) != len(messages):
        raise InvalidInput("a task sent no list of what it staged; nothing was published")
    return found
