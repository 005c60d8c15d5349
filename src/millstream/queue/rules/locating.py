"""Finds the slot of a message by its place in a log, without reading all buckets.

Routing gives numbers in the order of a log's records, batch by batch; within a batch, lane by lane.
So the first offset in a bucket rises with the bucket's number, except among the few buckets of a
batch, and a bisection leads near the bucket of an offset. The search then looks at the buckets around:
a bucket of another lane may have begun earlier and still hold the message. A redriven message has a
new, later number; only a search through all buckets finds it, so that a miss proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from millstream.format import keys
from millstream.format.ids import NUMBER_BITS, capacity_of, make_bucket_id, split_id
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import GONE, NONE
from millstream.queue.model.state import QueueState
from millstream.queue.rules.lookup import find_bucket
from millstream.store.state.view import View

BUCKETS_BACK, BUCKETS_AHEAD = 24, 8
"""The most buckets before and behind the bisected bucket that the search looks at."""

SKIPPED_MAX = 8
"""The most neighbouring buckets without a record of the log that a step of the bisection skips."""


class FoundSlot(NamedTuple):
    """The slot of a message."""

    bucket_id: int
    bucket: Bucket
    slot: int


def slot_in(bucket: Bucket, log_id: int, offset: int) -> int | None:
    """Return the slot of a record in a bucket; None if the bucket does not hold its message."""
    for span in bucket.spans:
        if span.log_id == log_id and span.offset <= offset < span.offset + span.count:
            slot = span.slot + offset - span.offset
            if bucket.states[slot] not in (NONE, GONE):
                return slot
    return None


def bisect_message(view: View, queue: QueueState, log_id: int, offset: int) -> FoundSlot | None:
    """Return the slot of a message, or None: the message is unknown, redriven, or far from its
    lane's neighbours.
    """
    low, high, last = 0, queue.next, None
    while low < high:
        middle = (low + high) // 2
        probe = _probe(view, queue, log_id, middle, high)
        if probe is None:
            high = middle
            continue
        bucket_id, bucket, first = probe
        if (slot := slot_in(bucket, log_id, offset)) is not None:
            return FoundSlot(bucket_id, bucket, slot)
        if first > offset:
            high = min(middle, split_id(bucket_id)[1])
        else:
            low, last = _end(bucket_id), bucket_id
    return None if last is None else _look_around(view, queue, last, log_id, offset)


def _probe(
    view: View, queue: QueueState, log_id: int, number: int, stop: int
) -> tuple[int, Bucket, int] | None:
    """Return a bucket at or behind a number, and the offset of the first record of the log that it
    received; None without such a bucket before `stop`. Redriven messages do not count.
    """
    for _ in range(SKIPPED_MAX):
        bucket_id = _next_bucket(view, queue, number, stop)
        if bucket_id is None:
            return None
        bucket = find_bucket(view, queue, bucket_id)
        for span in bucket.spans:
            if span.log_id == log_id and span.slot not in bucket.past:
                return bucket_id, bucket, span.offset
        number = _end(bucket_id)
    return None


def _look_around(
    view: View, queue: QueueState, bucket_id: int, log_id: int, offset: int
) -> FoundSlot | None:
    """Look at the buckets before and behind a bucket."""
    for near_id in chain(_before(queue, bucket_id), _behind(view, queue, bucket_id)):
        bucket = find_bucket(view, queue, near_id)
        if (slot := slot_in(bucket, log_id, offset)) is not None:
            return FoundSlot(near_id, bucket, slot)
    return None


def _before(queue: QueueState, bucket_id: int) -> Iterator[int]:
    exponent, number = split_id(bucket_id)
    capacity = capacity_of(exponent)
    began = next(began for began, _, _ in reversed(queue.eras) if began <= number)
    for earlier in range(number - capacity, began - 1, -capacity)[:BUCKETS_BACK]:
        yield make_bucket_id(exponent, earlier)


def _behind(view: View, queue: QueueState, bucket_id: int) -> Iterator[int]:
    for _ in range(BUCKETS_AHEAD):
        following_id = _next_bucket(view, queue, _end(bucket_id), queue.next)
        if following_id is None:
            return
        yield following_id
        bucket_id = following_id


def _next_bucket(view: View, queue: QueueState, first: int, stop: int) -> int | None:
    """Return the first bucket with numbers at or behind `first`, which begins before `stop`."""
    for began, end, exponent in queue.eras:
        capacity = capacity_of(exponent)
        low = max(began, first) // capacity * capacity
        high = min(stop, end) if end >= 0 else stop
        if low < high:
            start_key = keys.bucket(queue.queue_id, make_bucket_id(exponent, low))
            stop_key = keys.bucket(queue.queue_id, (exponent << NUMBER_BITS) + high)
            for key in view.find(start_key, stop_key, limit=1):
                return keys.pair(key)[1]
    return None


def _end(bucket_id: int) -> int:
    """Return the first number behind a bucket."""
    exponent, number = split_id(bucket_id)
    return number + capacity_of(exponent)
