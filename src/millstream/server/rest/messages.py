"""Messages of a queue: put them, look at them, and see how their attempts went."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.command import Operation
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.format.packing import pack_single
from millstream.queue import commands as c
from millstream.queue.model.marking import Wishes
from millstream.queue.model.message import Fate, Try, messages_of
from millstream.queue.putting import put_batch
from millstream.record import Item
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import ANY, Endpoints
from millstream.server.rest.payload import (
    Delay,
    NewRecord,
    Position,
    ReadMessage,
    Timestamp,
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
    """A message to be put; its priority, group and dedup go where the queue's spec looks."""

    priority: Priority | None = None
    group: str | None = None
    dedup: str | None = None


Addressed = tuple[Item, Wishes]
"""A message, and what the queue is to know of it."""


class PutBody(NewMessage, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One message, or several under `messages`: all of them, or none."""

    messages: list[NewMessage] | None = None
    delay: Delay | None = None
    """Seconds until they can be claimed."""
    at: Timestamp | datetime | None = None
    """Instead of a delay: when, in ms since the epoch or as ISO 8601 with a time zone."""
    producer: ProducerBody | None = None


class PutQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Beside a raw body; in a JSON body the same stands in the body."""

    priority: Priority | None = None
    group: str | None = None
    dedup: str | None = None
    delay: Delay | None = None
    at: Timestamp | None = None


class PeekQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages."""

    state: Literal["available", "in_flight", "done", "failed"] = "available"
    limit: Annotated[int, Meta(ge=1, le=PEEK_MAX)] = 100
    after: Position | None = None
    """The claim id of the last message of the page before."""
    attempts: bool = False
    """Whether each comes with its attempts."""


class MessagePage(Struct, kw_only=True):
    """Messages of a queue."""

    messages: list[ReadMessage]


class Put(Struct, kw_only=True):
    """What was put: the id of the first message, those of the others follow, and how many."""

    id: int
    """`GET /queues/{queue}/messages/{id}` says what became of it."""
    count: int


class ReplaceBody(NewRecord, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The message that takes the place of the failed one."""

    dry_run: bool = False
    """Only check whether it could be replaced so."""


class Replaced(Struct, kw_only=True):
    """What took the place of a failed message."""

    id: int | None
    """`GET /queues/{queue}/messages/{id}` says what became of it; null in a dry run."""


class Attempts(Struct, kw_only=True):
    """How the attempts at a message went, in order."""

    attempts: list[Try]


endpoint = Endpoints("messages")


@endpoint(
    "POST /queues/{queue}/messages",
    status=201,
    description="The id of the first, and how many",
    raw=(ANY,),
    headers=RAW_HEADERS,
    errors=(404, 409, 423),
)
async def put_messages(ask: Ask, queue: str, query: PutQuery, body: PutBody | None) -> Put:
    """Put one message or a batch straight to a queue, past its filter.

    A JSON body holds one message (`value` or `base64`) or several (`messages`). A body of any other
    type is one message as it is, with its content type.
    """
    if body is None:
        item = item_of_raw(ask.data, ask.sent)
        command, count = put_command(ask, queue, query, [(item, _wishes(query))])
    else:
        if query != PutQuery():
            raise InvalidInput("beside a JSON body, everything stands in the body")
        command, count = put_command(ask, queue, body, new_messages_of(body))
    if command is None:
        await get_queue(ask, queue)
        return Put(id=0, count=0)
    return Put(id=await ask.execute(command), count=count)


def new_messages_of(body: PutBody) -> list[Addressed]:
    """The messages of a body: the one that it is, or those that it lists."""
    if body.messages is None:
        return [(item_of(body), _wishes(body))]
    check_only_listed(body, NewMessage, "message")
    return [(item_of(one, f"messages[{i}]: "), _wishes(one)) for i, one in enumerate(body.messages)]


def _wishes(given: NewMessage | PutQuery) -> Wishes:
    return Wishes(given.priority, given.group, given.dedup)


def put_command(
    ask: Ask, queue: str, given: PutBody | PutQuery, messages: list[Addressed]
) -> tuple[Operation[int] | None, int]:
    """The command that puts messages, and how many they are; None if there are none."""
    wishes = [one for _, one in messages]
    return put_batch(
        queue,
        [item for item, _ in messages],
        keys=None,
        headers=None,
        delay=given.delay,
        at=given.at,
        limits=ask.limits,
        wishes=wishes if any(one != Wishes() for one in wishes) else [],
        producer=given.producer if isinstance(given, PutBody) else None,
    )


@endpoint("GET /queues/{queue}/messages", errors=(404, 410))
async def peek_messages(ask: Ask, queue: str, query: PeekQuery) -> MessagePage:
    """Look at messages in a state, without claiming them."""
    after = -1 if query.after is None else query.after
    found = await ask.execute(c.PeekMessages(queue, query.state, query.limit, after))
    shown = [show_message(message) for message in messages_of(found)]
    if query.attempts:
        for message in shown:
            message.attempts = await _tries(ask, queue, int(message.claim_id))
    return MessagePage(messages=shown)


async def _tries(ask: Ask, queue: str, claim_id: int) -> list[Try]:
    """How the attempts at a message went that was there just now."""
    try:
        return await ask.execute(c.GetAttempts(queue, claim_id))
    except NotFound:
        return []


@endpoint("POST /queues/{queue}/messages/{claim_id}/replace", errors=(404, 409))
async def replace_message(ask: Ask, queue: str, claim_id: int, body: ReplaceBody) -> Replaced:
    """Put another message in the place of a failed one, in one commit.

    It can be claimed at once, and keeps the attempts that were made. If the message is not failed
    any more, it is a conflict.
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
async def get_message(ask: Ask, queue: str, id: int) -> Fate:
    """What became of a message, by the id that putting it answered."""
    return await ask.execute(c.FindMessage(queue, id))


@endpoint("GET /queues/{queue}/messages/{claim_id}/attempts", errors=(404,))
async def get_attempts(ask: Ask, queue: str, claim_id: int) -> Attempts:
    """How the attempts at a message went."""
    return Attempts(attempts=await ask.execute(c.GetAttempts(queue, claim_id)))
