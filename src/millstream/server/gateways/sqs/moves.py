"""Message move tasks: messages of a dead-letter queue go back to their queues, or to another queue.

Each message is moved by one commit: it is put into its new queue, and acknowledged in the old one. So
a task that ends in the middle loses and repeats nothing. Tasks belong to the process that started
them; a task that was running when its server stopped has ended.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from millstream.command import Transact
from millstream.errors import LeaseLost, MillstreamError, NotFound
from millstream.format.packing import pack_single
from millstream.header import HeaderValue
from millstream.log.commands import Append
from millstream.queue import commands as c
from millstream.queue.model.message import Lot, Message, messages_of
from millstream.queue.model.own_logs import inbox_of
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.attributes import DEDUPLICATION, LETTER
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.errors import (
    SqsError,
    invalid,
    invalid_value,
    missing,
    no_queue,
    unsupported,
)
from millstream.server.gateways.sqs.move_tasks import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    REMEMBERED_MAX,
    RUNNING,
    MoveTask,
)
from millstream.server.gateways.sqs.names import QueueName, queue_of_arn, queue_of_stored
from millstream.server.gateways.sqs.queues import LISTED_MAX, counted
from millstream.server.journal import note_failure


class _Handle(Struct, rename={"task_id": "taskId", "source_arn": "sourceArn"}):
    """What the handle of a task says."""

    task_id: str
    source_arn: str


RATE_MAX = 500
CLAIMED_AT_ONCE = 10
LEASE_MS = 60_000


async def start_move(call: SqsCall, request: shapes.StartMessageMoveTaskRequest) -> dict[str, Any]:
    """Begin to move all messages that wait in a dead-letter queue."""
    source = await _queue_of(call, request.source_arn, "SourceArn")
    rate = request.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise invalid_value(
            "MaxNumberOfMessagesPerSecond", rate, f"Must be an integer from 1 to {RATE_MAX}."
        )
    destination = None
    if request.destination_arn:
        destination = await _queue_of(call, request.destination_arn, "DestinationArn")
        if destination.name.is_fifo != source.name.is_fifo:
            raise invalid("Source queue and destination queue must be of the same type.")
    if not await _has_sources(call, source):
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    tasks = call.catalog.moves
    if tasks.active(source.stored) is not None:
        raise invalid(
            "There is already a task running. Only one active task is allowed for a source "
            "queue arn at a given time."
        )
    info = await counted(call, source)
    handle = msgspec.json.encode(_Handle(str(uuid4()), source.name.arn))
    task = MoveTask(
        handle=_token(handle),
        source=source.stored,
        source_arn=source.name.arn,
        destination_arn="" if destination is None else destination.name.arn,
        rate=rate,
        to_move=info.available + info.unrouted,
        started_ms=call.now_ms(),
    )
    tasks.add(task)
    moving = asyncio.get_running_loop().create_task(_move_all(call, task, destination))
    tasks.running.add(moving)
    moving.add_done_callback(tasks.running.discard)
    return {"TaskHandle": task.handle}


def _token(handle: bytes) -> str:
    return urlsafe_b64encode(handle).decode()


async def _queue_of(call: SqsCall, arn: str | None, parameter: str) -> KnownQueue:
    if not arn:
        raise missing(parameter)
    name = queue_of_arn(arn)
    if name is None or name.region != call.region:
        raise invalid_value(
            parameter,
            arn[:200],
            "You must use this format to specify the ARN: "
            "arn:aws:sqs:REGION:ACCOUNT:QUEUE, in the region of the request.",
        )
    queue = call.catalog.find(name) or await call.catalog.freshly(name)
    if queue is None:
        raise SqsError(
            "ResourceNotFoundException",
            f"The resource that you specified for the {parameter} parameter doesn't exist.",
            404,
        )
    return queue


async def _has_sources(call: SqsCall, queue: KnownQueue) -> bool:
    """Return whether a queue is the dead-letter queue of any queue."""
    log, after = inbox_of(queue.stored), ""
    while True:
        page = await call.execute(c.ListQueues(after, LISTED_MAX))
        if any(info.spec.dead_letter == log for info in page):
            return True
        if len(page) < LISTED_MAX:
            return False
        after = page[-1].name


async def _move_all(call: SqsCall, task: MoveTask, destination: KnownQueue | None) -> None:
    """Move messages until none waits, the task is cancelled, or a message has no queue to go to."""
    try:
        while task.status == RUNNING:
            claim: Any = c.ClaimMessages(
                task.source, _at_once(task.rate), LEASE_MS, "message-move-task", None, []
            )
            lots: list[Lot] = await call.execute(claim)
            messages = messages_of(lots)
            if not messages:
                task.status = COMPLETED
                return
            await _move_batch(call, task, messages, destination)
            if task.rate:
                await asyncio.sleep(len(messages) / task.rate)
        task.status = CANCELLED
    except SqsError as error:
        task.status, task.reason = FAILED, error.message
    except NotFound:
        task.status, task.reason = FAILED, no_queue().query_code
    except MillstreamError as error:
        task.status, task.reason = FAILED, error.message
    except asyncio.CancelledError:
        task.status = CANCELLED
        raise
    except Exception as error:  # told without details, and logged
        note_failure(error)
        task.status, task.reason = FAILED, "The server made a mistake; its log says where."


def _at_once(rate: int | None) -> int:
    return CLAIMED_AT_ONCE if rate is None else min(CLAIMED_AT_ONCE, rate)


async def _move_batch(
    call: SqsCall, task: MoveTask, messages: Sequence[Message], destination: KnownQueue | None
) -> None:
    """Move messages; if one cannot be moved, it and those behind it become visible again at once."""
    for place, message in enumerate(messages):
        try:
            await _move(call, task, message, destination)
        except Exception:
            runs = [(each.claim_id, 1, each.attempt) for each in messages[place:]]
            with suppress(MillstreamError):  # their leases end
                await call.execute(c.FinishClaims(task.source, runs, "nack", 0, each=True))
            raise


async def _move(
    call: SqsCall, task: MoveTask, message: Message, destination: KnownQueue | None
) -> None:
    """Move one message."""
    run = (message.claim_id, 1, message.attempt)
    source = task.source
    target = destination or _origin(call, message)
    if target is None:
        raise SqsError("FailureReason", "A message names no queue that it came from.")
    record = pack_single(
        message.value,
        key=message.key,
        headers=_moved_headers(message, target.name),
        timestamp=None,
        limits=call.client.core.store.limits,
    )
    steps: list[Any] = [
        Append(inbox_of(target.stored), record),
        c.FinishClaims(source, [run], "ack"),
    ]
    try:
        await call.execute(Transact(steps))
    except LeaseLost:
        return  # another consumer has the message now
    task.moved += 1


def _origin(call: SqsCall, message: Message) -> KnownQueue | None:
    stored = message.headers.get(f"{LETTER}queue")
    name = queue_of_stored(stored, call.home) if isinstance(stored, str) else None
    return None if name is None else call.catalog.find(name)


def _moved_headers(message: Message, target: QueueName) -> Mapping[str, HeaderValue]:
    """Return the headers of a moved message. It is a new message, and never a repeat."""
    headers = {
        name: value for name, value in message.headers.items() if not name.startswith(LETTER)
    }
    if target.is_fifo:
        headers[DEDUPLICATION] = secrets.token_hex(32)
    return headers


async def cancel_move(
    call: SqsCall, request: shapes.CancelMessageMoveTaskRequest
) -> dict[str, Any]:
    """End a running task; messages that are moved already stay where they are."""
    if not request.task_handle:
        raise missing("TaskHandle")
    try:
        handle = msgspec.json.decode(urlsafe_b64decode(request.task_handle), type=_Handle)
    except (ValueError, msgspec.MsgspecError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None
    source = await _queue_of(call, handle.source_arn, "SourceArn")
    await call.execute(c.DescribeQueue(source.stored))
    for task in call.catalog.moves.by_source.get(source.stored, []):
        if secrets.compare_digest(task.handle.encode(), request.task_handle.encode()):
            if task.status != RUNNING:
                raise unsupported("Only active tasks can be cancelled.")
            task.status = CANCELLING
            return {"ApproximateNumberOfMessagesMoved": task.moved}
    raise SqsError("ResourceNotFoundException", "Task does not exist.", 404)


async def list_moves(call: SqsCall, request: shapes.ListMessageMoveTasksRequest) -> dict[str, Any]:
    """List the last tasks of a source queue, the newest first."""
    source = await _queue_of(call, request.source_arn, "SourceArn")
    limit = 1 if request.max_results is None else request.max_results
    if not 1 <= limit <= REMEMBERED_MAX:
        raise invalid_value("MaxResults", limit, f"Must be an integer from 1 to {REMEMBERED_MAX}.")
    await call.execute(c.DescribeQueue(source.stored))
    tasks = call.catalog.moves.by_source.get(source.stored, [])
    return {"Results": [task.entry() for task in tasks[:limit]]}
