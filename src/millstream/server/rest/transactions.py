"""Transactions over REST: a list of operations in one atomic commit."""

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
from millstream.rooms.packed_messages import data_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.claims import (
    ErrorFields,
    Lease,
    ResultFields,
    Tokens,
    error_of,
    results_of,
    runs_of,
)
from millstream.server.rest.cursors import CursorAckBody, ranges_of
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import TruncateBody
from millstream.server.rest.messages import PutBody, new_messages_of, put_command
from millstream.server.rest.payload import Delay, Position
from millstream.server.rest.records import AppendBody, items_of

OPERATIONS_MAX = 1_000
"""Most operations in one transaction: they run under the write lock."""


def _tag(name: str) -> str:
    """Return `create_log` for `CreateLogOperation`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Operation")).lower()


class _Operation(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="op", tag=_tag):
    pass


class AppendOperation(AppendBody, _Operation, kw_only=True):
    """Append one record, or several under `records`; answers the first offset."""

    log: str


class PutOperation(PutBody, _Operation, kw_only=True):
    """Put one message, or several under `messages`; answers the first id."""

    queue: str


class SendOperation(_Operation):
    """Send one message to all listeners of a room; answers its offset."""

    room: str
    type: str
    data: Any = None
    key: str | None = None
    deleted: bool = False
    """Whether to delete the retained value of the type and key."""
    user: str = ""
    """The user that listeners see as the sender."""


class CreateLogOperation(_Operation):
    """Create a log; answers whether it is new."""

    log: str


class DeleteLogOperation(_Operation):
    """Delete a log; answers whether the log existed."""

    log: str


class TruncateOperation(TruncateBody, _Operation, kw_only=True):
    """Delete the records before an offset; answers how many were deleted."""

    log: str


class SetMetadataOperation(_Operation):
    """Set a metadata entry; answers null."""

    log: str
    key: str
    value: Any


class CursorAckOperation(CursorAckBody, _Operation, kw_only=True):
    """Acknowledge records on a cursor; answers the cursor's floor."""

    log: str
    cursor: str


class CursorSeekOperation(_Operation):
    """Set a cursor's floor; answers the floor. Acknowledgements above the floor are forgotten."""

    log: str
    cursor: str
    offset: Position


class AckOperation(ResultFields, _Operation, kw_only=True):
    """Acknowledge claims; answers null. A lost lease undoes the complete transaction."""

    queue: str
    claims: Tokens


class NackOperation(ErrorFields, _Operation, kw_only=True):
    """Give claims back, to be tried again; answers null."""

    queue: str
    claims: Tokens
    delay: Delay | None = None


class FailOperation(ErrorFields, _Operation, kw_only=True):
    """Fail the messages of claims; answers null."""

    queue: str
    claims: Tokens


class CancelOperation(_Operation):
    """Cancel a message by the id that its put returned; answers true, false or "requested"."""

    queue: str
    id: int
    """The id that the put answered."""
    running: bool = False
    """Whether to ask the consumer of a message in flight to stop."""


class RenewOperation(_Operation):
    """Renew the leases of claims; answers when the leases end."""

    queue: str
    claims: Tokens
    lease: Lease | None = None
    """Seconds from now; default: the queue's spec."""


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
    CancelOperation,
]


class TransactionBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The operations, in order."""

    operations: Annotated[list[Operation], Meta(min_length=1, max_length=OPERATIONS_MAX)]


class Results(Struct, kw_only=True):
    """The answer of each operation, in order."""

    results: list[Any]


endpoint = Endpoints("transactions")


@endpoint("POST /transactions", errors=(404, 409, 416, 423))
async def transact(ask: Ask, body: TransactionBody) -> Results:
    """Execute several operations in one atomic commit."""
    steps = [_step(ask, operation) for operation in body.operations]
    results = await ask.execute(Transact(steps))
    return Results(results=[_shown(result) for result in results])


def _shown(result: Any) -> Any:
    if isinstance(result, LeaseEnd):
        return result.until
    return None if isinstance(result, list) else result


def _step(ask: Ask, operation: Operation) -> Any:
    """Return the command of an operation."""
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
            return logs.Acknowledge(log, cursor, ranges_of(operation), lost=list(operation.lost))
        case CursorSeekOperation(log=log, cursor=cursor, offset=offset):
            return logs.MoveCursor(log, cursor, offset)
        case NackOperation(queue=queue, claims=claims, delay=delay, reason=reason):
            runs, delay_ms, error = runs_of(claims), optional_ms(delay), error_of(operation)
            return queues.FinishClaims(queue, runs, "nack", delay_ms, reason, error=error)
        case FailOperation(queue=queue, claims=claims, reason=reason):
            error = error_of(operation)
            return queues.FinishClaims(queue, runs_of(claims), "fail", reason=reason, error=error)
        case CancelOperation(queue=queue, id=id, running=running):
            return queues.CancelMessage(check_name(queue, "queue"), id, running=running)
        case RenewOperation(queue=queue, claims=claims, lease=lease):
            return queues.RenewClaims(queue, runs_of(claims), optional_ms(lease))
    results = results_of(operation, operation.claims)
    return queues.FinishClaims(operation.queue, runs_of(operation.claims), "ack", results=results)


def _append(ask: Ask, operation: AppendOperation) -> logs.Append:
    packed = pack_many(
        items_of(operation), keys=None, headers=None, timestamps=None, limits=ask.limits
    )
    if packed is None:
        raise InvalidInput("an append in a transaction needs at least one record")
    return logs.Append(operation.log, packed, operation.expect_end, operation.producer)


def _put(ask: Ask, operation: PutOperation) -> Any:
    queue = check_name(operation.queue, "queue")
    if operation.detail:
        raise InvalidInput("a put in a transaction has no detail: its answer is the id")
    command, _ = put_command(ask, queue, operation, new_messages_of(operation))
    if command is None:
        raise InvalidInput("a put in a transaction needs at least one message")
    return command
