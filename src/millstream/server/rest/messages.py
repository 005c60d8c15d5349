"""Messages of a queue over REST: put, peek, replace, and the history of their attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from millstream.command import Operation
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.format.packing import pack_single
from millstream.queue import commands as c
from millstream.queue.model.message import PeekState, Try, messages_of
from millstream.queue.model.routing_marks import Wishes
from millstream.queue.put_commands import put_batch, reported
from millstream.record import Item
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import ANY, Endpoints
from millstream.server.rest.fates import ShownFate, show_fate
from millstream.server.rest.payload import (
    Delay,
    NewRecord,
    Position,
    ReadMessage,
    Timestamp,
    Wait,
    check_only_listed,
    item_of,
    item_of_raw,
    show_message,
)
from millstream.server.rest.queues import get_queue, is_failed
from millstream.server.rest.records import RAW_HEADERS, ProducerBody

PEEK_MAX = 1_000

Priority = Annotated[int, Meta(ge=0, le=9)]


class NewMessage(NewRecord, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A message to put. The queue's spec says where priority, group and dedup id are stored."""

    priority: Priority | None = None
    group: str | None = None
    dedup: str | None = None


Addressed = tuple[Item, Wishes]
"""A message, and its priority, group and dedup id."""


class PutBody(NewMessage, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One message, or several under `messages`, which are put atomically."""

    messages: list[NewMessage] | None = None
    delay: Delay | None = None
    """Seconds until the messages can be claimed."""
    at: Timestamp | datetime | None = None
    """Instead of a delay: the time, in ms since the epoch or as ISO 8601 with a time zone."""
    producer: ProducerBody | None = None
    detail: bool = False
    """Whether the answer reports a repeat; for a single message, which is then not stored."""


class PutQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters beside a raw body; a JSON body has them as fields."""

    priority: Priority | None = None
    group: str | None = None
    dedup: str | None = None
    delay: Delay | None = None
    at: Timestamp | None = None
    detail: bool = False
    """Whether the answer reports a repeat, which is then not stored."""


class PeekQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages to show."""

    state: PeekState = "available"
    """`until` of a delayed message is its due time."""
    limit: Annotated[int, Meta(ge=1, le=PEEK_MAX)] = 100
    after: Position | None = None
    """The claim id of the last message of the page before."""
    attempts: bool = False
    """Whether to include each message's attempts."""


class MessagePage(Struct, kw_only=True):
    """Messages of a queue."""

    messages: list[ReadMessage]


class Put(Struct, kw_only=True, omit_defaults=True):
    """The id of the first message, and how many messages were put; ids count up by one."""

    id: int | None
    """`GET /queues/{queue}/messages/{id}` shows the state of the message.

    Of a repeat, the id of the message that it repeats; null if the queue has forgotten that message.
    """
    count: int
    repeated: bool | None = None
    """Whether the message is a repeat, and so was not stored. Only a put with `detail` reports it."""


class CancelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do with a message in flight."""

    running: bool = False
    """Whether to ask the consumer of a message in flight to stop."""


class CancelledMessage(Struct, kw_only=True, omit_defaults=True):
    """Whether a message is cancelled."""

    cancelled: bool
    """False: the message is in flight, has ended, or is unknown."""
    requested: bool = False
    """Whether the consumer of the message is asked to stop."""


class WaitQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How long to wait for the end of a message."""

    wait: Wait = 0.0
    """Seconds to wait until the message is done, failed or cancelled; then the state is returned."""


class ReplaceBody(NewRecord, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The message that replaces the failed message."""

    dry_run: bool = False
    """Only check whether the message could be replaced."""


class Replaced(Struct, kw_only=True):
    """The message that replaced a failed message."""

    id: int | None
    """`GET /queues/{queue}/messages/{id}` shows its state; null in a dry run."""


class Attempts(Struct, kw_only=True):
    """The attempts at a message, in order."""

    attempts: list[Try]


endpoint = Endpoints("messages")


@endpoint(
    "POST /queues/{queue}/messages",
    status=201,
    description="The id of the first message, and how many were put",
    raw=(ANY,),
    headers=RAW_HEADERS,
    errors=(404, 409, 423),
)
async def put_messages(ask: Ask, queue: str, query: PutQuery, body: PutBody | None) -> Put:
    """Put one message or a batch directly into a queue, past its filter.

    A JSON body holds one message (`value` or `base64`) or several (`messages`). A body of another
    media type is one message as is, with its content type.
    """
    if body is None:
        item = item_of_raw(ask.data, ask.sent)
        command, count = put_command(ask, queue, query, [(item, _wishes(query))])
    else:
        if query != PutQuery():
            raise InvalidInput("beside a JSON body, all parameters are fields of the body")
        command, count = put_command(ask, queue, body, new_messages_of(body))
    if command is None:
        await get_queue(ask, queue)
        return Put(id=0, count=0)
    if (query if body is None else body).detail:
        result = await ask.execute(reported(queue, command))
        return Put(id=result.id, count=int(not result.repeated), repeated=result.repeated)
    first: int = await ask.execute(command)
    return Put(id=first, count=count)


def new_messages_of(body: PutBody) -> list[Addressed]:
    """Return the messages of a body: the body itself, or the listed messages."""
    if body.messages is None:
        return [(item_of(body), _wishes(body))]
    check_only_listed(body, NewMessage, "message")
    return [
        (item_of(message, f"messages[{i}]: "), _wishes(message))
        for i, message in enumerate(body.messages)
    ]


def _wishes(source: NewMessage | PutQuery) -> Wishes:
    return Wishes(source.priority, source.group, source.dedup)


def put_command(
    ask: Ask, queue: str, source: PutBody | PutQuery, messages: list[Addressed]
) -> tuple[Operation[int] | None, int]:
    """Return the command that puts messages, and their number; None for an empty list."""
    wishes = [wish for _, wish in messages]
    return put_batch(
        queue,
        [item for item, _ in messages],
        keys=None,
        headers=None,
        delay=source.delay,
        at=source.at,
        limits=ask.limits,
        wishes=wishes if any(wish != Wishes() for wish in wishes) else [],
        producer=source.producer if isinstance(source, PutBody) else None,
    )


@endpoint("GET /queues/{queue}/messages", errors=(404, 410))
async def peek_messages(ask: Ask, queue: str, query: PeekQuery) -> MessagePage:
    """Show messages in a state, without claiming them."""
    after = -1 if query.after is None else query.after
    lots = await ask.execute(c.PeekMessages(queue, query.state, query.limit, after))
    shown = [show_message(message) for message in messages_of(lots)]
    if query.attempts:
        for message in shown:
            message.attempts = await _tries(ask, queue, int(message.claim_id))
    return MessagePage(messages=shown)


async def _tries(ask: Ask, queue: str, claim_id: int) -> list[Try]:
    """Return the attempts at a message; empty if the message was removed meanwhile."""
    try:
        return await ask.execute(c.GetAttempts(queue, claim_id))
    except NotFound:
        return []


@endpoint("POST /queues/{queue}/messages/{claim_id}/replace", errors=(404, 409))
async def replace_message(ask: Ask, queue: str, claim_id: int, body: ReplaceBody) -> Replaced:
    """Replace a failed message by another message, in one commit.

    The new message can be claimed at once and keeps the earlier attempts. The answer is 409 if the
    message is no longer failed.
    """
    item = item_of(body)
    record = pack_single(
        item.value, key=item.key, headers=item.headers, timestamp=item.timestamp, limits=ask.limits
    )
    command = c.ReplaceFailed(queue, claim_id, record)
    if not body.dry_run:
        id: int = await ask.execute(command)
        return Replaced(id=id)
    ask.principal.check(command)
    if not await is_failed(ask, queue, claim_id):
        raise Conflict(
            f"message {claim_id} of queue {queue!r} is not failed, so it cannot be replaced",
            name=queue,
            claim_id=claim_id,
        )
    return Replaced(id=None)


@endpoint("GET /queues/{queue}/messages/{id}", errors=(404,))
async def get_message(ask: Ask, queue: str, id: int, query: WaitQuery) -> ShownFate:
    """Show the state of a message, by the id that its put returned.

    With `wait`, the answer comes once the message has ended, or after this time. An unknown message
    is answered with 404 then.
    """
    if wait_ms := ask.wait_ms(query.wait):
        fate = await ask.unless_over(c.WaitForMessage(queue, id, wait_ms))
        if fate is not None:
            return show_fate(fate)
    return show_fate(await ask.execute(c.FindMessage(queue, id)))


@endpoint("POST /queues/{queue}/messages/{id}/cancel", body_optional=True, errors=(404,))
async def cancel_message(ask: Ask, queue: str, id: int, body: CancelBody) -> CancelledMessage:
    """Cancel a message that waits, is delayed or is scheduled, by the id that its put returned.

    A repeat of the request succeeds. With `running`, the consumer of a message in flight is asked to
    stop.
    """
    outcome = await ask.execute(c.CancelMessage(queue, id, running=body.running))
    return CancelledMessage(cancelled=outcome is True, requested=outcome == "requested")


@endpoint("GET /queues/{queue}/messages/{claim_id}/attempts", errors=(404,))
async def get_attempts(ask: Ask, queue: str, claim_id: int) -> Attempts:
    """List the attempts at a message."""
    return Attempts(attempts=await ask.execute(c.GetAttempts(queue, claim_id)))
