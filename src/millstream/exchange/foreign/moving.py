"""Moving: the waiting messages of another system become messages of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from msgspec import Struct

from millstream.errors import NotFound
from millstream.exchange.foreign.kinds import SourceKind
from millstream.exchange.foreign.message import ForeignMessage, ForeignQueue
from millstream.header import HeaderValue
from millstream.queue.model.spec import KEY, QueueSpec
from millstream.threads.database import Millstream
from millstream.threads.queue import Queue

BATCH = 500
DEDUP_HEADER = "import-id"
DEDUP_WINDOW_S = 7 * 24 * 3600
PRIORITY_HEADER = "priority"

Tell = Callable[[str, int, int], None]
"""Receives progress: the stage, and how many messages were moved; the total is unknown, 0."""


class MoveSummary(Struct):
    """The counts of a move."""

    queue: str
    moved: int = 0
    repeats_are_dropped: bool = True
    """False if the queue has no dedup id: a crash may then leave a message twice."""


def open_source(kind: SourceKind, address: str, queue: str) -> ForeignQueue:
    """Open the queue of another system; raise `InvalidInput` if its package is missing."""
    if kind is SourceKind.HUEY:
        from millstream.exchange.foreign.huey_file import HueyFile

        return HueyFile(address, queue)
    if kind is SourceKind.SQS:
        from millstream.exchange.foreign.sqs_queue import SqsQueue

        return SqsQueue(address)
    from millstream.exchange.foreign import redis_lists

    if kind is SourceKind.RQ:
        return redis_lists.RqQueue(address, queue)
    if kind is SourceKind.CELERY_REDIS:
        return redis_lists.CeleryQueue(address, queue)
    return redis_lists.RedisList(address, queue)


def target_queue(ms: Millstream, name: str) -> Queue:
    """Return a queue; create a missing one, which drops repeats by the id of a message."""
    queue = ms.queue(name)
    try:
        queue.info()
    except NotFound:
        return ms.create_queue(
            name,
            dedup_by=DEDUP_HEADER,
            dedup_window=DEDUP_WINDOW_S,
            priority_by=PRIORITY_HEADER,
        )
    return queue


def move_messages(
    ms: Millstream, name: str, source: ForeignQueue, heard: Tell | None = None
) -> MoveSummary:
    """Store each batch of waiting messages durably, then remove the batch from the source."""
    with closing(source):
        messages = source.take(BATCH)
        queue = target_queue(ms, name)  # not before: a source that fails leaves the store as it is
        spec = queue.info().spec
        summary = MoveSummary(name, repeats_are_dropped=bool(spec.dedup_by))
        while messages:
            _store(queue, spec, messages)
            source.remove(messages)
            summary.moved += len(messages)
            if heard is not None:
                heard("messages", summary.moved, 0)
            messages = source.take(BATCH)
    return summary


def _store(queue: Queue, spec: QueueSpec, messages: Sequence[ForeignMessage]) -> None:
    """Put messages, in a commit for each due time."""
    by_due: dict[int | None, list[ForeignMessage]] = {}
    for message in messages:
        by_due.setdefault(message.due_ms, []).append(message)
    for due_ms, batch in by_due.items():
        queue.put_many(
            [message.value for message in batch],
            keys=[message.id if spec.dedup_by == KEY else None for message in batch],
            headers=[_headers(spec, message) for message in batch],
            at=due_ms,
        )


def _headers(spec: QueueSpec, message: ForeignMessage) -> dict[str, HeaderValue]:
    """Return the headers of a message, with those from which the queue reads id and priority."""
    headers = dict(message.headers)
    if spec.dedup_by and spec.dedup_by != KEY:
        headers[spec.dedup_by] = message.id
    if spec.priority_by and spec.priority_by != KEY and message.priority is not None:
        headers[spec.priority_by] = message.priority
    return headers
