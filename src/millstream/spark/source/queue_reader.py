"""Batch reads of a queue: its messages in one state, or how every message's attempts went.

Nothing is changed by it, and nothing claimed. Available is also what waits in the logs and was not
routed yet: such rows have no claim id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.errors import NotFound
from millstream.header import Headers
from millstream.queue.commands import DescribeQueue, PeekMessages
from millstream.queue.model.message import Message, messages_of
from millstream.queue.service.bulk_reads import Attempted, ListAttempts
from millstream.queue.service.unrouted_records import unrouted_records
from millstream.record import Record, wall_ms_of
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.columns import header_column
from millstream.spark.source.layout import arrow_schema, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millstream.command import Session

PAGE = 1_000

Row = dict[str, Any]


class QueueReader(DataSourceReader):
    """Reads a queue, in the order of its claims, in one task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One piece; a queue that is not there is refused before the read begins."""
        name = self._options.queue
        with reading(self._options.place) as session:
            if session.execute(DescribeQueue(name)) is None:
                raise NotFound(
                    f"option queue: there is no queue {name!r}; `millstream queue list` shows "
                    "what there is",
                    name=name,
                )
        return [InputPartition(name)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The queue's rows."""
        schema = arrow_schema(self._schema)
        with reading(self._options.place) as session:
            rows = iter(self._rows(session))
            while page := list(islice(rows, PAGE)):
                yield _batch(page, schema)

    def _rows(self, session: Session) -> Iterable[Row]:
        options = self._options
        if options.state == "attempts":
            yield from _attempts(session, options.queue)
            return
        yield from _peeked(session, options)
        if options.state == "available":
            for record in unrouted_records(session, options.queue):
                yield _row(record, options.queue, "available")


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        if field.name == "headers":
            arrays.append(_headers(values, field.type))
        elif pa.types.is_timestamp(field.type):
            numbers = [None if ms is None else ms * 1000 for ms in values]
            arrays.append(pa.array(numbers, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(message_headers: Sequence[Headers | None], kind: pa.DataType) -> pa.Array:
    """Return the column of headers; damaged headers are null, no headers are an empty map."""
    column = header_column(
        [headers.plain() for headers in message_headers if headers is not None], kind
    )
    if None not in message_headers:
        return column
    places = count()
    return column.take(
        pa.array([None if headers is None else next(places) for headers in message_headers])
    )


def _row(message: Message | Record, queue: str, state: str) -> Row:
    """Return the row of a message, or of a record that the queue has not routed yet."""
    claim = message if isinstance(message, Message) else None
    damage = "" if claim is None else claim.damage
    is_lost = damage == "record"
    return {
        "queue": queue,
        "state": state,
        "claimId": None if claim is None else str(claim.claim_id),
        "attempt": 0 if claim is None else claim.attempt,
        "key": message.key,
        "value": None if damage else message.value,
        "topic": message.log,
        "offset": message.offset,
        "timestamp": None if is_lost else message.timestamp,
        "reason": "" if claim is None else claim.reason,
        "damage": damage,
        "headers": None if is_lost else message.headers,
    }


def _peeked(session: Session, options: ReadOptions) -> Iterator[Row]:
    after = -1
    while lots := session.execute(
        PeekMessages(options.queue, options.state, PAGE, after=after, route=False)
    ):
        page = messages_of(lots)
        yield from (_row(message, options.queue, options.state) for message in page)
        after = page[-1].claim_id


def _attempts(session: Session, name: str) -> Iterator[Row]:
    after = -1
    while page := session.execute(ListAttempts(name, PAGE, after)):
        for attempted in page:
            yield from _tries(attempted, name)
        after = page[-1].claim_id


def _tries(attempted: Attempted, queue: str) -> Iterator[Row]:
    for number, attempt in enumerate(attempted.tries, 1):
        yield {
            "queue": queue,
            "state": attempted.state.replace(" ", ""),
            "claimId": str(attempted.claim_id),
            "attempt": number,
            "topic": attempted.log,
            "offset": attempted.offset,
            "appendedAt": attempted.appended_ms,
            "consumer": attempt.consumer,
            "claimedAt": wall_ms_of(attempt.claimed),
            "endedAt": None if attempt.ended is None else wall_ms_of(attempt.ended),
            "outcome": attempt.outcome,
            "reason": attempt.reason,
        }
