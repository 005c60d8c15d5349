"""ReceiveMessage: a claim whose messages are described in the words of SQS."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from millstream.command import Command
from millstream.errors import LeaseLost, MillstreamError, Overloaded
from millstream.header import NO_HEADERS, HeaderValue
from millstream.queue.commands import ClaimMessages, FinishClaims, GetAttempts, RenewClaims
from millstream.queue.model.message import Lot, Message, messages_of
from millstream.queue.model.own_logs import put_id
from millstream.record import wall_ms_of
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.attempts import Received
from millstream.server.gateways.sqs.attributes import (
    DEDUPLICATION,
    GROUP,
    LETTER,
    MESSAGE_ID,
    SENDER,
    TRACE,
    attributes_of,
    check_id,
    displayed,
    has_only_allowed,
    selected,
)
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.digests import digest_of_attributes
from millstream.server.gateways.sqs.errors import SqsError, invalid_value
from millstream.server.gateways.sqs.identity import digest_of_value, id_of_put, sequence_number
from millstream.server.gateways.sqs.names import queue_of_stored
from millstream.server.gateways.sqs.receipts import Receipt
from millstream.server.gateways.sqs.settings import NO_LEASE_S, READABLE, VISIBILITY_S_MAX

MESSAGES_MAX = 10
WAIT_S_MAX = 20
GIVEN_BACK_MS = 5_000
"""The lease of messages that stay visible, until they are given back."""

_LETTER_QUEUE = f"{LETTER}queue"
_FIRST = "ApproximateFirstReceiveTimestamp"
SYSTEM = frozenset(
    {
        _FIRST,
        "ApproximateReceiveCount",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
        "MessageDeduplicationId",
        "MessageGroupId",
        "SenderId",
        "SentTimestamp",
        "SequenceNumber",
    }
)
"""The system attributes of a message."""


async def receive_message(call: SqsCall, request: shapes.ReceiveMessageRequest) -> dict[str, Any]:
    """Receive up to ten messages, and wait for the first."""
    queue = await call.queue(request.queue_url)
    count = request.max_number_of_messages
    if count is not None and not 1 <= count <= MESSAGES_MAX:
        raise invalid_value(
            "MaxNumberOfMessages", count, f"Must be between 1 and {MESSAGES_MAX}, if provided."
        )
    wait_s = _within("WaitTimeSeconds", request.wait_time_seconds, WAIT_S_MAX)
    lease_s = _within("VisibilityTimeout", request.visibility_timeout, VISIBILITY_S_MAX)
    names_of_system = wanted_system(
        [*request.attribute_names, *request.message_system_attribute_names]
    )
    attempt = _attempt_of(queue, request.receive_request_attempt_id)
    wait_s = queue.record.wait_s if wait_s is None else wait_s
    is_visible = lease_s == 0 or (lease_s is None and queue.spec.lease <= NO_LEASE_S)
    lease_ms = None if lease_s is None else lease_s * 1000
    if is_visible:
        lease_ms = GIVEN_BACK_MS
    call.catalog.tidy_soon(queue)
    received = await _repeated(call, queue, attempt, lease_ms) if attempt else None
    if received is None:
        count = 1 if count is None else count
        messages = await _claim(call, queue, count, lease_ms=lease_ms, wait_ms=wait_s * 1000)
        if is_visible and messages:
            await _give_back(call, queue, messages)
        received = Received(call.now_ms(), messages)
        if attempt and messages:
            call.catalog.attempts.keep(queue.seed, attempt, received)
    names, at_ms = request.message_attribute_names, received.at_ms
    answers = [_described(call, queue, message, names, at_ms) for message in received.messages]
    if names_of_system:
        for message, answer in zip(received.messages, answers, strict=True):
            first_ms = at_ms
            if message.attempt > 1 and _FIRST in names_of_system:
                first_ms = await _first_receive_ms(call, queue, message) or at_ms
            system = _system_attributes(call, queue, message, first_ms)
            answer["Attributes"] = {
                name: text for name, text in system.items() if name in names_of_system
            }
    return {"Messages": answers} if answers else {}


async def _give_back(call: SqsCall, queue: KnownQueue, messages: Sequence[Message]) -> None:
    """Make received messages visible again at once.

    A lease of no time instead would end within the claim, which would then take its messages twice.
    """
    runs = [(message.claim_id, 1, message.attempt) for message in messages]
    with suppress(MillstreamError):  # their leases end
        await call.execute(FinishClaims(queue.stored, runs, "nack", 0, each=True))


async def _first_receive_ms(call: SqsCall, queue: KnownQueue, message: Message) -> int | None:
    tries = await call.execute(GetAttempts(queue.stored, message.claim_id))
    return wall_ms_of(tries[0].claimed) if tries else None


def _attempt_of(queue: KnownQueue, attempt: str | None) -> str:
    if attempt is None:
        return ""
    if not queue.name.is_fifo:
        raise invalid_value(
            "ReceiveRequestAttemptId",
            attempt[:200],
            "The request includes a parameter that is not valid for this queue type.",
        )
    return check_id("ReceiveRequestAttemptId", attempt)


async def _repeated(
    call: SqsCall, queue: KnownQueue, attempt: str, lease_ms: int | None
) -> Received | None:
    """Return the messages of an earlier receive that its consumer still holds, with new leases."""
    earlier = call.catalog.attempts.find(queue.seed, attempt, call.now_ms())
    if earlier is None:
        return None
    held = []
    for message in earlier.messages:
        run = (message.claim_id, 1, message.attempt)
        with suppress(LeaseLost):
            await call.execute(RenewClaims(queue.stored, [run], lease_ms))
            held.append(message)
    return Received(earlier.at_ms, held) if held else None


def _within(parameter: str, value: int | None, high: int) -> int | None:
    if value is not None and not 0 <= value <= high:
        raise invalid_value(parameter, value, f"Must be >= 0 and <= {high}, if provided.")
    return value


def wanted_system(names: Iterable[str]) -> frozenset[str]:
    """Return the system attributes that a request names, or raise for an unknown name."""
    selection = frozenset(names)
    for name in selection - SYSTEM:
        if name != "All" and name not in READABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return SYSTEM if "All" in selection else selection & SYSTEM


async def _claim(
    call: SqsCall, queue: KnownQueue, count: int, *, lease_ms: int | None, wait_ms: int
) -> Sequence[Message]:
    """Claim messages; those beyond the retention of the queue are ended instead."""
    seconds = call.client.core.store.clock.seconds
    until_s = seconds() + wait_ms / 1000
    while True:
        left_ms = max(0, round((until_s - seconds()) * 1000))
        command: Command[Any] = ClaimMessages(
            queue.stored,
            count,
            lease_ms,
            call.client.principal.name,
            left_ms or None,
            [],
            group_runs=queue.name.is_fifo,
        )
        try:
            lots: list[Lot] = await call.execute(command)
        except Overloaded as error:
            if "held" not in error.data:
                raise
            if queue.name.is_fifo:
                return []  # AWS tells consumers of FIFO queues nothing about this limit
            raise SqsError("OverLimit", error.message, 403) from None
        messages = messages_of(lots)
        retention_ms = queue.record.retention_ms
        if retention_ms is None:
            return messages
        oldest_ms = call.now_ms() - retention_ms
        expired = [message for message in messages if message.timestamp < oldest_ms]
        if not expired:
            return messages
        runs = [(message.claim_id, 1, message.attempt) for message in expired]
        await call.execute(FinishClaims(queue.stored, runs, "ack", each=True))
        if fresh := [message for message in messages if message.timestamp >= oldest_ms]:
            return fresh


def _described(
    call: SqsCall, queue: KnownQueue, message: Message, names: list[str], at_ms: int
) -> dict[str, Any]:
    """Return a received message as SQS shows it, without its system attributes."""
    value, headers = message.value or b"", message.headers
    receipt = Receipt(message.claim_id, message.attempt, at_ms)
    body = text_of(value)
    answer: dict[str, Any] = {
        "MessageId": id_of(call, queue, message, headers),
        "ReceiptHandle": receipt.handle(queue.stored),
        "MD5OfBody": digest_of_value(body.encode()),
        "Body": body,
    }
    if names and headers:
        attributes = selected(attributes_of(headers), names)
        if attributes:
            answer["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
            answer["MessageAttributes"] = displayed(attributes)
    return answer


def text_of(value: bytes) -> str:
    """Return a value as a body; bytes of other producers that are no text are displayed in base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()
    return text if has_only_allowed(text) else b64encode(value).decode()


def id_of(
    call: SqsCall, queue: KnownQueue, message: Message, headers: Mapping[str, HeaderValue]
) -> str:
    """Return the id of a message; a dead letter keeps the id that it had in its first queue."""
    if headers is not NO_HEADERS:
        stored_id = headers.get(MESSAGE_ID)
        if isinstance(stored_id, str):
            return stored_id
        source = headers.get(_LETTER_QUEUE)
        if isinstance(source, str):
            log, offset = headers.get(f"{LETTER}log"), headers.get(f"{LETTER}offset")
            name = queue_of_stored(source, call.home)
            source_queue = None if name is None else call.catalog.find(name)
            if source_queue is not None and isinstance(log, str) and isinstance(offset, int):
                return id_of_put(source_queue.seed, put_or_offset(source, log, offset))
    return id_of_put(queue.seed, put_or_offset(queue.stored, message.log, message.offset))


def put_or_offset(queue: str, log: str, offset: int) -> int:
    """Return the id of a `put`; for a record of another log, its offset."""
    return _first_put(queue, log) + offset


@lru_cache(maxsize=4_096)
def _first_put(queue: str, log: str) -> int:
    """Return the id of the first `put` into a log of a queue; 0 for another log."""
    return put_id(queue, log, 0) or 0


def _system_attributes(
    call: SqsCall, queue: KnownQueue, message: Message, first_ms: int
) -> dict[str, str]:
    headers = message.headers
    attributes = {
        _FIRST: str(first_ms),
        "ApproximateReceiveCount": str(message.attempt),
        "SenderId": _text(headers.get(SENDER)) or call.account,
        "SentTimestamp": str(message.timestamp),
    }
    if group := _text(headers.get(GROUP)):
        attributes["MessageGroupId"] = group
    if trace := _text(headers.get(TRACE)):
        attributes["AWSTraceHeader"] = trace
    if queue.name.is_fifo:
        if dedup := _text(headers.get(DEDUPLICATION)):
            attributes["MessageDeduplicationId"] = dedup.rpartition("\0")[2]
        put = put_or_offset(queue.stored, message.log, message.offset)
        attributes["SequenceNumber"] = sequence_number(put)
    source = headers.get(_LETTER_QUEUE)
    name = queue_of_stored(source, call.home) if isinstance(source, str) else None
    if name is not None:
        attributes["DeadLetterQueueSourceArn"] = name.arn
    return attributes


def _text(value: HeaderValue) -> str:
    return value if isinstance(value, str) else ""
