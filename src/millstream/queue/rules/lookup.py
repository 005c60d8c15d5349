"""Lookups: a queue by name, a bucket of a queue, and all queues of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.engine.commit import Row
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.described import describe
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.store.state.view import View

ROWS_PER_STEP = 1_000


def find_queue(view: View, name: str) -> QueueState:
    """Return a queue, existing or not."""
    return view.entity(keys.queue(name), QueueState)


def need_queue(view: View, name: str) -> QueueState:
    """Return an existing queue, or raise."""
    queue = find_queue(view, name)
    if not queue.exists():
        raise no_queue(name)
    return queue


def all_queues(view: View) -> Iterator[QueueState]:
    """Yield every queue in name order."""
    for key in view.find_all(*keys.range_of(keys.prefix(keys.QUEUE))):
        yield view.entity(key, QueueState)


def find_bucket(view: View, queue: QueueState, bucket_id: int) -> Bucket:
    """Return a bucket of a queue; an error about damage carries the queue's name."""
    try:
        return view.entity(keys.bucket(queue.queue_id, bucket_id), Bucket)
    except CorruptionError as error:
        raise of_queue(error, queue.name) from error


def of_queue(error: CorruptionError, name: str) -> CorruptionError:
    """Return an error about a damaged row with the name of the queue that needs the row."""
    why = error.message.removeprefix(f"{describe(keys.queue(name))} cannot be read: ")
    return CorruptionError(f"queue {name!r}: {why}", **error.data | {"queue": name})


def all_rows(scan: Callable[..., list[Row]], start: bytes, stop: bytes) -> Iterator[Row]:
    """Yield all small rows of a range, scanned in steps."""
    while rows := scan(start, stop, limit=ROWS_PER_STEP):
        yield from rows
        start = keys.successor(rows[-1][0])
