"""Messages of a queue: put them, look at them, and see how their attempts went."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from millstream.command import Command
from millstream.errors import InvalidInput
from millstream.format.packing import Batch, pack_many
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue import commands as c
from millstream.queue.model.message import Try, messages_of
from millstream.queue.model.spec import QueueSpec
from millstream.queue.putting import Wishes, addressed, marked
from millstream.queue.rules.sources import inbox_of
from millstream.record import Item, Producer
from millstream.server.rest.ask import Ask, milliseconds
from millstream.server.rest.endpoint import ANY, Answer, Endpoint
from millstream.server.rest.payload import (
    NewRecord,
    Position,
    ReadMessage,
    Timestamp,
    item_of,
    item_of_raw,
    show_message,
)
from millstream.server.rest.queues import get_queue
from millstream.server.rest.records import RAW_HEADERS, Appended, ProducerBody, producer_of

PEEK_MAX = 1_000

Priority = Annotated[int, Meta(ge=0, le=9)]
Delay = Annotated[float, Meta(ge=0, le=1e12)]


class NewMessage(NewRecord, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A message to be put; its priority, group and dedup go where the queue's spec looks."""

    priority: Priority | None = None
    group: str | None = None
    dedup: str | None = None


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


class MessagePage(Struct, kw_only=True):
    """Messages of a queue."""

    messages: list[ReadMessage]


class Attempts(Struct, kw_only=True):
    """How the attempts at a message went, in order."""

    attempts: list[Try]


async def put(ask: Ask) -> Appended:
    """Put one message or several straight to a queue."""
    spec = (await get_queue(ask)).spec
    if ask.raw is not None:
        query: PutQuery = ask.query
        item = item_of_raw(ask.raw, dict(ask.request.headers))
        messages = [(item, _wishes(query))]
        when, producer = Wishes(delay=query.delay, at=query.at), None
    else:
        if ask.query != PutQuery():
            raise InvalidInput("beside a JSON body, everything stands in the body")
        body: PutBody = ask.body
        messages, when = new_messages_of(body), Wishes(delay=body.delay, at=body.at)
        producer = producer_of(body.producer)
    command, count = put_command(
        ask.name("queue"), spec, messages, when, producer, ask.session.limits
    )
    first = 0 if command is None else await ask.execute(command)
    return Appended(offset=first, count=count)


def new_messages_of(body: PutBody) -> list[tuple[Item, Wishes]]:
    """The messages of a body: the one that it is, or those that it lists."""
    if body.messages is None:
        return [(item_of(body), _wishes(body))]
    empty = replace(body, messages=None, delay=None, at=None, producer=None)
    if msgspec.structs.asdict(empty) != msgspec.structs.asdict(PutBody()):
        raise InvalidInput("a body is one message, or has 'messages'; not both")
    return [
        (item_of(message, f"messages[{i}]: "), _wishes(message))
        for i, message in enumerate(body.messages)
    ]


def _wishes(given: NewMessage | PutQuery) -> Wishes:
    return Wishes(priority=given.priority, group=given.group, dedup=given.dedup)


def put_command(
    queue: str,
    spec: QueueSpec,
    messages: list[tuple[Item, Wishes]],
    when: Wishes,
    producer: Producer | None,
    limits: Limits,
) -> tuple[Command[int] | None, int]:
    """The command that puts messages, and how many they are; None if there are none."""
    items = []
    for item, wishes in messages:
        key, headers = addressed(queue, spec, item.key, item.headers, wishes)
        items.append(Item(item.value, key, headers, item.timestamp))
    packed = pack_many(items, keys=None, headers=None, timestamps=None, limits=limits)
    if packed is None:
        return None, 0
    count = packed.count if isinstance(packed, Batch) else 1
    if not when.later:
        return Append(inbox_of(queue), packed, producer=producer), count
    if producer is not None:
        raise InvalidInput("a message for later cannot name a producer; use dedup")
    if when.delay is not None:
        when = replace(when, delay=milliseconds(when.delay) / 1000)  # type: ignore[arg-type]
    times = when.times()
    marks = [marked(spec, item.key, item.headers, times) for item in items]
    return c.PutForLater(queue, packed, marks), count


async def peek(ask: Ask) -> MessagePage:
    """Messages in a state, without claiming them."""
    query: PeekQuery = ask.query
    after = -1 if query.after is None else query.after
    found = await ask.execute(c.PeekMessages(ask.name("queue"), query.state, query.limit, after))
    return MessagePage(messages=[show_message(message) for message in messages_of(found)])


async def attempts(ask: Ask) -> Attempts:
    """How the attempts at a message went."""
    command = c.GetAttempts(ask.name("queue"), ask.number("claim_id"))
    return Attempts(attempts=await ask.execute(command))


def _endpoint(**about: Any) -> Endpoint:
    return Endpoint(tag="messages", **about)


ENDPOINTS = (
    _endpoint(
        method="POST",
        path="/queues/{queue}/messages",
        name="putMessages",
        summary="Put one message or a batch straight to a queue, past its filter",
        detail="A JSON body holds one message (`value` or `base64`) or several (`messages`). A "
        "body of any other type is one message as it is, with its content type.",
        run=put,
        query=PutQuery,
        body=PutBody,
        raw=(ANY,),
        headers=RAW_HEADERS,
        answers=(Answer(Appended, "Its offset in the queue's own log", status=201),),
        errors=(404, 409, 423),
    ),
    _endpoint(
        method="GET",
        path="/queues/{queue}/messages",
        name="peekMessages",
        summary="Look at messages in a state, without claiming them",
        run=peek,
        query=PeekQuery,
        answers=(Answer(MessagePage),),
        errors=(404, 410),
    ),
    _endpoint(
        method="GET",
        path="/queues/{queue}/messages/{claim_id}/attempts",
        name="getAttempts",
        summary="How the attempts at a message went",
        run=attempts,
        answers=(Answer(Attempts),),
        errors=(404,),
    ),
)
