"""Transactions: a list of operations in one commit, all of them or none."""

from __future__ import annotations

from typing import Annotated, Any, Union

from msgspec import Meta, Struct

from millstream.command import Transact
from millstream.errors import InvalidInput
from millstream.format.packing import check_json, pack_many
from millstream.log import commands as logs
from millstream.log.marks import joined
from millstream.log.names import check_name
from millstream.queue import commands as queues
from millstream.queue.model.spec import no_queue
from millstream.queue.putting import Wishes
from millstream.server.rest.ask import Ask, milliseconds
from millstream.server.rest.claims import Tokens, runs_of
from millstream.server.rest.endpoint import Answer, Endpoint
from millstream.server.rest.messages import Delay, NewMessage, PutBody, new_messages_of, put_command
from millstream.server.rest.payload import NewRecord, Position
from millstream.server.rest.records import AppendBody, ProducerBody, items_of, producer_of

OPERATIONS_MAX = 1_000
"""Operations in one transaction: they run under the write lock."""


class AppendOperation(
    NewRecord, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag="append"
):
    """Append one record, or several under `records`; answers the first offset."""

    log: str
    records: list[NewRecord] | None = None
    expect_end: Position | None = None
    producer: ProducerBody | None = None


class PutOperation(NewMessage, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag="put"):
    """Put one message, or several under `messages`; answers the first offset."""

    queue: str
    messages: list[NewMessage] | None = None


class _Operation(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="op"):
    pass


class CreateLogOperation(_Operation, tag="create_log"):
    """Make a log; answers whether there was none."""

    log: str


class DeleteLogOperation(_Operation, tag="delete_log"):
    """Forget a log; answers whether there was one."""

    log: str


class TruncateOperation(_Operation, tag="truncate"):
    """Forget the records before an offset; answers how many went."""

    log: str
    before: Position


class SetMetadataOperation(_Operation, tag="set_metadata"):
    """Set a metadata entry; answers null."""

    log: str
    key: str
    value: Any


class CursorAckOperation(_Operation, tag="cursor_ack"):
    """Acknowledge on a cursor; answers its floor."""

    log: str
    cursor: str
    offsets: list[Position] = []
    ranges: list[tuple[Position, Position]] = []


class CursorSeekOperation(_Operation, tag="cursor_seek"):
    """Set a cursor's floor; answers it."""

    log: str
    cursor: str
    offset: Position


class AckOperation(_Operation, tag="ack"):
    """Acknowledge claims; a lost lease undoes the whole transaction. Answers null."""

    queue: str
    claims: Tokens


class NackOperation(_Operation, tag="nack"):
    """Give claims back, to be tried again. Answers null."""

    queue: str
    claims: Tokens
    delay: Delay | None = None
    reason: str = ""


class FailOperation(_Operation, tag="fail"):
    """Give up on claims. Answers null."""

    queue: str
    claims: Tokens
    reason: str = ""


Operation = Union[  # noqa: UP007  # msgspec reads it as one type
    AppendOperation,
    PutOperation,
    CreateLogOperation,
    DeleteLogOperation,
    TruncateOperation,
    SetMetadataOperation,
    CursorAckOperation,
    CursorSeekOperation,
    AckOperation,
    NackOperation,
    FailOperation,
]


class TransactionBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Operations in order."""

    operations: Annotated[list[Operation], Meta(min_length=1, max_length=OPERATIONS_MAX)]


class Results(Struct, kw_only=True):
    """The answer of each operation, in order."""

    results: list[Any]


async def transact(ask: Ask) -> Results:
    """Carry out operations in one commit."""
    body: TransactionBody = ask.body
    steps = [await _step(ask, operation) for operation in body.operations]
    results = await ask.execute(Transact(steps))
    return Results(results=[None if isinstance(one, list) else one for one in results])


async def _step(ask: Ask, operation: Operation) -> Any:
    if isinstance(operation, AppendOperation):
        return _append(ask, operation)
    if isinstance(operation, PutOperation):
        return await _put(ask, operation)
    if isinstance(operation, AckOperation | NackOperation | FailOperation):
        return _finish(operation)
    log = check_name(operation.log)
    if isinstance(operation, CreateLogOperation):
        return logs.CreateLog(log)
    if isinstance(operation, DeleteLogOperation):
        return logs.DeleteLog(log)
    if isinstance(operation, TruncateOperation):
        return logs.Truncate(log, operation.before)
    if isinstance(operation, SetMetadataOperation):
        key = check_name(operation.key, "metadata")
        return logs.SetMetadata(log, key, check_json(operation.value))
    cursor = check_name(operation.cursor, "cursor")
    if isinstance(operation, CursorSeekOperation):
        return logs.MoveCursor(log, cursor, operation.offset)
    return logs.Acknowledge(log, cursor, joined(operation.offsets) + operation.ranges)


def _append(ask: Ask, operation: AppendOperation) -> logs.Append:
    items = items_of(
        AppendBody(
            **{name: getattr(operation, name) for name in NewRecord.__struct_fields__},
            records=operation.records,
        )
    )
    packed = pack_many(items, keys=None, headers=None, timestamps=None, limits=ask.session.limits)
    if packed is None:
        raise InvalidInput("an append of a transaction has at least one record")
    producer = producer_of(operation.producer)
    return logs.Append(check_name(operation.log), packed, operation.expect_end, producer)


async def _put(ask: Ask, operation: PutOperation) -> Any:
    queue = check_name(operation.queue, "queue")
    info = await ask.execute(queues.DescribeQueue(queue))
    if info is None:
        raise no_queue(queue)
    body = PutBody(
        **{name: getattr(operation, name) for name in NewMessage.__struct_fields__},
        messages=operation.messages,
    )
    command, _ = put_command(
        queue, info.spec, new_messages_of(body), Wishes(), None, ask.session.limits
    )
    if command is None:
        raise InvalidInput("a put of a transaction has at least one message")
    return command


def _finish(operation: AckOperation | NackOperation | FailOperation) -> queues.FinishClaims:
    delay = operation.delay if isinstance(operation, NackOperation) else None
    return queues.FinishClaims(
        check_name(operation.queue, "queue"),
        runs_of(operation.claims),
        {AckOperation: "ack", NackOperation: "nack"}.get(type(operation), "fail"),
        None if delay is None else milliseconds(delay),
        "" if isinstance(operation, AckOperation) else operation.reason,
    )


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/transactions",
        name="transact",
        summary="Several operations in one commit: all of them, or none",
        run=transact,
        tag="transactions",
        body=TransactionBody,
        answers=(Answer(Results),),
        errors=(404, 409, 416, 423),
    ),
)
