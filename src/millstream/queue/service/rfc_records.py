"""The RFC's records of a queue, a page at a time, in key order.

A page shows each bucket as of a commit; the queue may change between two buckets. Under the mutex a
page only copies buckets; it reads metadata and makes records outside.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from millstream.errors import CorruptionError, InvalidInput
from millstream.format import entries, keys, rfc
from millstream.format.ids import make_bucket_id
from millstream.log.model.head import Bounds
from millstream.log.reading.reader import RowMoved, entries_of, with_rows
from millstream.queue import commands as c
from millstream.queue.model import records
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import Span, Trial
from millstream.queue.rules.lookup import need_queue
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

RECORDS_MAX = 10_000
"""The most records in a page."""

RECORDS_BYTES = 1024 * 1024
"""The bytes after which a page ends; a single record may be larger."""

T = TypeVar("T")
_NONE = Bucket.blank()

BUCKETS_PER_LOOK = 16
BUCKETS_PER_GLANCE = 256
"""The most buckets whose message ids are read under the mutex at a time."""


def list_records(store: Store, query: c.ListRecords) -> list[rfc.RfcRecord]:
    """Return a page of the RFC's records."""
    if not 0 < query.count <= RECORDS_MAX:
        raise InvalidInput(f"a page has from 1 to {RECORDS_MAX:,} records, not {query.count}")
    page: list[rfc.RfcRecord] = []
    size = 0
    for record in _records(store, query):
        page.append(record)
        size += len(record.key) + len(record.value)
        if len(page) == query.count or size >= RECORDS_BYTES:
            break
    return page


def _records(store: Store, query: c.ListRecords) -> Iterator[rfc.RfcRecord]:
    name = query.queue.encode()
    spec = store.view(lambda view: need_queue(view, query.queue).spec)
    for kind in records.BUCKET_RECORDS:
        first = _first(query.after, rfc.queue_prefix(kind, name))
        if first is not None:
            metadata = _RfcMetadata(store, strict=kind != rfc.RecordType.DONE)
            for bucket_id, bucket in _buckets(store, query.queue, first):
                yield records.bucket_record(kind, name, bucket_id, bucket, metadata)
    first = _first(query.after, rfc.queue_prefix(rfc.RecordType.ATTEMPTS, name))
    if first is not None:
        for message_id, trials in _attempts(store, query.queue, first):
            yield records.attempts_record(name, message_id, trials)
    if query.after < rfc.queue_spec_key(name):
        yield records.spec_record(name, spec)


def _first(after: bytes, prefix: bytes) -> int | None:
    """Return the first number behind a prefix whose key is after `after`; None if no key follows."""
    if after < prefix:
        return 0
    number = after[len(prefix) :]
    if not after.startswith(prefix) or number >= b"\xff" * 8:
        return None
    return int.from_bytes(number[:8].ljust(8, b"\x00"), "big") + (len(number) >= 8)


def _buckets(store: Store, name: str, first: int) -> Iterator[tuple[int, Bucket]]:
    """Yield copies of the buckets from an id on; a queue without buckets yields its empty first
    bucket.
    """
    is_empty = first == 0
    for copied in _each(store, name, first, Bucket.copied, BUCKETS_PER_LOOK):
        is_empty = False
        yield copied
    if is_empty:
        queue = store.view(partial(need_queue, name=name))
        yield make_bucket_id(queue.spec.bucket_exponent, queue.next), Bucket.blank()


def _each(
    store: Store, name: str, first: int, read: Callable[[Bucket], T], step: int
) -> Iterator[tuple[int, T]]:
    """Yield the ids of buckets from `first` on, with the result of `read` under the mutex."""

    def look(view: View) -> list[tuple[int, T]]:
        queue_id = need_queue(view, name).queue_id
        start, stop = keys.bucket(queue_id, first), keys.bucket(queue_id + 1, 0)
        bucket_keys = view.find(start, stop, limit=step)
        return [(keys.pair(key)[1], read(view.entity(key, Bucket))) for key in bucket_keys]

    while page := store.view(look):
        yield from page
        first = page[-1][0] + 1


def _attempts(store: Store, name: str, first: int) -> Iterator[tuple[int, list[Trial]]]:
    """Yield messages that were ever claimed, from a message id on, in order, with their attempts."""
    waiting: list[tuple[int, int, list[Trial]]] = []
    for lowest_id, bucket_id in sorted(_glances(store, name, first)):
        yield from _joined(waiting, below=lowest_id)
        found_id, bucket = next(_each(store, name, bucket_id, Bucket.copied, 1), (-1, _NONE))
        for message_id, trials in records.trials_by_message(bucket):
            if found_id == bucket_id and message_id >= first:
                heapq.heappush(waiting, (message_id, found_id, trials))
    yield from _joined(waiting, below=2**64)


def _joined(
    waiting: list[tuple[int, int, list[Trial]]], *, below: int
) -> Iterator[tuple[int, list[Trial]]]:
    """Pop messages off a heap; a message that is in a queue twice has the attempts of both."""

    def due() -> Iterator[tuple[int, int, list[Trial]]]:
        while waiting and waiting[0][0] < below:
            yield heapq.heappop(waiting)

    for message_id, entries_of_message in groupby(due(), key=itemgetter(0)):
        trials = [
            trial for _, _, trials_in_bucket in entries_of_message for trial in trials_in_bucket
        ]
        yield message_id, sorted(trials, key=lambda trial: trial.at_ms)


def _glances(store: Store, name: str, first: int) -> Iterator[tuple[int, int]]:
    """Yield the lowest message id and the id of each bucket with messages from `first` on."""
    for bucket_id, (lowest_id, highest_id) in _each(store, name, 0, _extent, BUCKETS_PER_GLANCE):
        if highest_id >= first:
            yield lowest_id, bucket_id


def _extent(bucket: Bucket) -> tuple[int, int]:
    """Return the lowest and the highest message id in a bucket."""
    lowest_id = min([span.message_id for span in bucket.spans])
    return lowest_id, max([span.message_id + span.count - 1 for span in bucket.spans])


class _RfcMetadata:
    """Reads the metadata of messages from the entries of their logs."""

    def __init__(self, store: Store, *, strict: bool) -> None:
        self._store = store
        self._strict = strict
        """Whether metadata must exist. A log may have deleted the metadata of done messages."""
        self._log_id = 0
        self._first = 0
        self._entry: list[tuple[int, bytes]] = []
        """The ids and metadata of the entry that was read last."""

    def __call__(self, span: Span) -> list[bytes]:
        """Return the metadata of neighbouring messages; empty bytes where it was deleted."""
        metadata_list: list[bytes] = []
        while len(metadata_list) < span.count:
            offset = span.offset + len(metadata_list)
            if self._log_id != span.log_id or not self._holds(offset):
                self._read(span.log_id, offset)
            if not self._holds(offset):
                metadata_list.append(b"")
                continue
            at = offset - self._first
            following = self._entry[at : at + span.count - len(metadata_list)]
            metadata_list += [metadata for _, metadata in following]
        return metadata_list

    def _holds(self, offset: int) -> bool:
        return self._first <= offset < self._first + len(self._entry)

    def _read(self, log_id: int, offset: int) -> None:
        """Read the entry that covers an offset."""
        self._log_id, self._first, self._entry = log_id, offset, []

        def read(_: Bounds, rows: Rows) -> tuple[int, bytes]:
            return next(entries_of(rows, log_id, start=offset, stop=offset + 1))

        try:
            self._first, value = with_rows(self._store, log_id, read)
            self._entry = entries.metadata_of(value)
        except RowMoved:
            if self._strict:
                raise CorruptionError(
                    f"the metadata of the message at offset {offset} is gone; "
                    "run `millstream doctor`",
                    what="log entry",
                    where=offset,
                    offset=offset,
                ) from None
