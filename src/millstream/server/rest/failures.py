"""Failed messages by reason, and the consumers of a queue: figures for operators, over REST.

The store has no index by reason or by consumer. One request scans a bounded number of messages and
returns where to continue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from millstream.errors import NotFound
from millstream.queue import commands as c
from millstream.queue.model.message import Message, messages_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.payload import Position
from millstream.server.rest.queues import ClaimId

SCANNED_MAX = 10_000
"""Most failed messages scanned by a request."""

PAGE = 500
"""Messages per read; a read has the values of the messages, too."""

HELD_MAX = 1_000
"""Most messages in flight whose consumers are asked for."""

REASON_CHARS_MAX = 1_000


class FailuresQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to start."""

    after: Position | None = None
    """The `next` of the answer before."""


class FailureGroup(Struct, kw_only=True):
    """Failed messages with the same reason."""

    reason: str
    """The first line of the reason; empty if no reason was given."""
    count: int
    """The number of messages, among the scanned messages."""
    first: datetime | None
    """When the first of these messages failed, in UTC."""
    last: datetime | None
    """When the last of these messages failed, in UTC."""


class FailurePage(Struct, kw_only=True):
    """Failed messages, grouped by reason."""

    groups: list[FailureGroup]
    """The largest group first."""
    scanned: int
    """How many failed messages were scanned."""
    next: str | None
    """Pass this as `after` to scan the following messages; null: all messages were scanned."""


class RetryBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The group of failed messages to retry."""

    reason: Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
    """The first line of the reason, as the list of groups shows it; empty: no reason."""
    after: ClaimId | None = None
    """The `next` of the answer before: text, because numbers of JavaScript are too small for it."""
    dry_run: bool = False


class RetriedGroup(Struct, kw_only=True):
    """Messages of a group that are available again."""

    count: int
    scanned: int
    """How many failed messages were scanned."""
    next: str | None
    """Pass this as `after` to retry the following messages; null: all messages were scanned."""


class Consumer(Struct, kw_only=True):
    """A consumer that has claimed messages of a queue."""

    consumer: str
    messages: int
    """Messages in flight that the consumer holds."""
    since: datetime
    """When the consumer claimed the first of these messages, in UTC."""
    until: datetime | None
    """When the first lease of these messages ends, in UTC."""


class ConsumerPage(Struct, kw_only=True):
    """The consumers that hold messages of a queue."""

    consumers: list[Consumer]
    """The consumer with the most messages first."""
    is_complete: bool
    """Whether all messages in flight were counted; only the first 1,000 messages are."""


endpoint = Endpoints("queues")


@endpoint("GET /queues/{queue}/failures", errors=(404,))
async def list_failures(ask: Ask, queue: str, query: FailuresQuery) -> FailurePage:
    """Count failed messages by reason.

    One request scans up to 10,000 failed messages; continue at `next`.
    """
    groups: dict[str, FailureGroup] = {}
    scan = _Scan(query.after)
    async for message in scan.messages(ask, queue):
        reason = reason_of(message)
        group = groups.setdefault(
            reason, FailureGroup(reason=reason, count=0, first=None, last=None)
        )
        group.count += 1
        if message.until is not None:
            group.first = min(group.first or message.until, message.until)
            group.last = max(group.last or message.until, message.until)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.reason))
    return FailurePage(groups=ordered, scanned=scan.scanned, next=scan.next)


@endpoint("POST /queues/{queue}/failures/retry", errors=(404,))
async def retry_failures(ask: Ask, queue: str, body: RetryBody) -> RetriedGroup:
    """Redrive the failed messages with the same reason, under new claim ids.

    One request scans up to 10,000 failed messages; continue at `next`.
    """
    ask.principal.check(c.RedriveClaims(queue, []))
    scan = _Scan(None if body.after is None else int(body.after))
    chosen = [
        message.claim_id
        async for message in scan.messages(ask, queue)
        if reason_of(message) == body.reason
    ]
    count = len(chosen)
    if not body.dry_run:
        count = 0
        for start in range(0, len(chosen), c.REDRIVE_PER_COMMIT):
            batch = chosen[start : start + c.REDRIVE_PER_COMMIT]
            count += await ask.execute(c.RedriveClaims(queue, batch))
    return RetriedGroup(count=count, scanned=scan.scanned, next=scan.next)


@endpoint("GET /queues/{queue}/consumers", errors=(404,))
async def list_consumers(ask: Ask, queue: str) -> ConsumerPage:
    """List the consumers that hold messages of a queue, of all servers and programs."""
    lots = await ask.execute(c.PeekMessages(queue, "in_flight", HELD_MAX + 1))
    messages = messages_of(lots)
    consumers: dict[str, Consumer] = {}
    for message in messages[:HELD_MAX]:
        try:
            tries = await ask.execute(c.GetAttempts(queue, message.claim_id))
        except NotFound:  # the message was removed meanwhile
            continue
        if not tries or tries[-1].ended is not None:
            continue
        latest = tries[-1]
        consumer = consumers.get(latest.consumer)
        if consumer is None:
            consumer = consumers[latest.consumer] = Consumer(
                consumer=latest.consumer, messages=0, since=latest.claimed, until=message.until
            )
        consumer.messages += 1
        consumer.since = min(consumer.since, latest.claimed)
        if message.until is not None:
            consumer.until = min(consumer.until or message.until, message.until)
    ordered = sorted(consumers.values(), key=lambda holder: (-holder.messages, holder.consumer))
    return ConsumerPage(consumers=ordered, is_complete=len(messages) <= HELD_MAX)


def reason_of(message: Message) -> str:
    """Return the first line of the reason for which a message failed."""
    return message.reason.strip().partition("\n")[0].strip()


class _Scan:
    """A scan of the failed messages of a queue, up to a bound."""

    def __init__(self, after: int | None) -> None:
        self.scanned = 0
        self._after = -1 if after is None else after
        self._is_over = False

    @property
    def next(self) -> str | None:
        """The last claim id of the scan, to continue behind it; None if all messages were read."""
        return None if self._is_over else str(self._after)

    async def messages(self, ask: Ask, queue: str) -> AsyncIterator[Message]:
        """Yield the failed messages in the order of their claim ids."""
        while self.scanned < SCANNED_MAX:
            lots = await ask.execute(c.PeekMessages(queue, "failed", PAGE, self._after))
            page = messages_of(lots)
            if not page:
                self._is_over = True
                return
            self._after = page[-1].claim_id
            self.scanned += len(page)
            for message in page:
                yield message
