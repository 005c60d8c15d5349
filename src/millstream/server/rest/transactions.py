"""Transactions: a list of operations in one commit, all of them or none."""

from __future__ import annotations

import re
from typing import Annotated, Any, Union

from msgspec import Meta, Struct

from millstream.command import Transact
from millstream.errors import InvalidInput
from millstream.format.packing import check_json, pack_many
from millstream.log import commands as logs
from millstream.log.model.names import check_name
from millstream.queue import commands as queues
from millstream.queue.model.message import LeaseEnd
from millstream.record import optional_ms
from millstream.rooms.commands import SendToRoom
from millstream.rooms.model import RoomMessage
from millstream.rooms.packing import data_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.claims import Lease, Tokens, runs_of
from millstream.server.rest.cursors import CursorAckBody, SeekBody, ranges_of
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import TruncateBody
from millstream.server.rest.messages import PutBody, new_messages_of, put_command
from millstream.server.rest.payload import Delay
from millstream.server.rest.records import AppendBody, items_of

OPERATIONS_MAX = 1_000
"""Operations in one transaction: they run under the write lock."""


def _tag(name: str) -> str:
    """`CreateLogOperation` is `create_log`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Operation")).lower()


class _Operation(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag=_tag):
    pass


class AppendOperation(AppendBody, _Operation, kw_only=True):
    """Append one record, or several under `records`; answers the first offset."""

    log: str


class PutOperation(PutBody, _Operation, kw_only=True):
    """Put one message, or several under `messages`; answers the id of the first."""

    queue: str


class SendOperation(_Operation):
    """Send one message to all listeners of a room; answers its offset."""

    room: str
    type: str
    data: Any = None
    key: str | None = None
    deleted: bool = False
    """Whether the retained value of the type and key is forgotten."""
    user: str = ""
    """Shown as the sender."""


class CreateLogOperation(_Operation):
    """Make a log; answers whether there was none."""

    log: str


class DeleteLogOperation(_Operation):
    """Forget a log; answers whether there was one."""

    log: str


class TruncateOperation(TruncateBody, _Operation, kw_only=True):
    """Forget the records before an offset; answers how many went."""

    log: str


class SetMetadataOperation(_Operation):
    """Set a metadata entry; answers null."""

    log: str
    key: str
    value: Any


class CursorAckOperation(CursorAckBody, _Operation, kw_only=True):
    """Acknowledge on a cursor; answers its floor."""

    log: str
    cursor: str


class CursorSeekOperation(SeekBody, _Operation, kw_only=True):
    """Set a cursor's floor; answers it."""

    log: str
    cursor: str


class AckOperation(_Operation):
    """Acknowledge claims; a lost lease undoes the whole transaction. Answers null."""

    queue: str
    claims: Tokens


class NackOperation(AckOperation):
    """Give claims back, to be tried again. Answers null."""

    delay: Delay | None = None
    reason: str = ""


class FailOperation(AckOperation):
    """Give up on claims. Answers null."""

    reason: str = ""


class RenewOperation(AckOperation):
    """Prolong the leases of claims; answers until when."""

    lease: Lease | None = None
    """Seconds from now; without one, as the queue's spec says."""


Operation = Union[  # noqa: UP007  # msgspec reads it as one type
    AppendOperation,
    PutOperation,
    SendOperation,
    CreateLogOperation,
    DeleteLogOperation,
    TruncateOperation,
    SetMetadataOperation,
    CursorAckOperation,
    CursorSeekOperation,
    AckOperation,
    NackOperation,
    FailOperation,
    RenewOperation,
]


class TransactionBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Operations in order."""

    operations: Annotated[list[Operation], Meta(min_length=1, max_length=OPERATIONS_MAX)]


class Results(Struct, kw_only=True):
    """The answer of each operation, in order."""

    results: list[Any]


endpoint = Endpoints("transactions")


@endpoint("POST /transactions", errors=(404, 409, 416, 423))
async def transact(ask: Ask, body: TransactionBody) -> Results:
    """Several operations in one commit: all of them, or none."""
    steps = [_step(ask, operation) for operation in body.operations]
    results = await ask.execute(Transact(steps))
    return Results(results=[_shown(one) for one in results])


def _shown(result: Any) -> Any:
    if isinstance(result, LeaseEnd):
        return result.until
    return None if isinstance(result, list) else result


def _step(ask: Ask, operation: Operation) -> Any:
    """The command of an operation."""
    match operation:
        case AppendOperation():
            return _append(ask, operation)
        case PutOperation():
            return _put(ask, operation)
        case SendOperation(room=room, type=kind, key=key, deleted=deleted):
            message = RoomMessage(kind, data_of(operation.data), key, deleted)
            return SendToRoom(check_name(room, "room"), [message], operation.user)
        case CreateLogOperation(log=log):
            return logs.CreateLog(log)
        case DeleteLogOperation(log=log):
            return logs.DeleteLog(log)
        case TruncateOperation(log=log, before=before, past_end=past_end):
            return logs.Truncate(log, before, past_end)
        case SetMetadataOperation(log=log, key=key, value=value):
            return logs.SetMetadata(log, key, check_json(value))
        case CursorAckOperation(log=log, cursor=cursor):
            return logs.Acknowledge(log, cursor, ranges_of(operation))
        case CursorSeekOperation(log=log, cursor=cursor, offset=offset):
            return logs.MoveCursor(log, cursor, offset)
        case NackOperation(queue=queue, claims=claims, delay=delay, reason=reason):
            return queues.FinishClaims(queue, runs_of(claims), "nack", optional_ms(delay), reason)
        case FailOperation(queue=queue, claims=claims, reason=reason):
            return queues.FinishClaims(queue, runs_of(claims), "fail", reason=reason)
        case RenewOperation(queue=queue, claims=claims, lease=lease):
            return queues.RenewClaims(queue, runs_of(claims), optional_ms(lease))
    return queues.FinishClaims(operation.queue, runs_of(operation.claims), "ack")


def _append(ask: Ask, operation: AppendOperation) -> logs.Append:
    packed = pack_many(
        items_of(operation), keys=None, headers=None, timestamps=None, limits=ask.limits
    )
    if packed is None:
        raise InvalidInput("an append of a transaction has at least one record")
    return logs.Append(operation.log, packed, operation.expect_end, operation.producer)


def _put(ask: Ask, operation: PutOperation) -> Any:
    queue = check_name(operation.queue, "queue")
    command, _ = put_command(ask, queue, operation, new_messages_of(operation))
    if command is None:
        raise InvalidInput("a put of a transaction has at least one message")
    return command
