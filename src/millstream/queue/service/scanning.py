"""Scanning: what analytics and outside routers ask of a queue in bulk, without changing anything.

Messages and their attempts, what is not routed, and how far routing has come.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from millstream.command import Read, Signed, Traits, on_queue
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.ids import split_id
from millstream.log.model.head import Head, without
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.message import Try, tries_of
from millstream.queue.rules.finding import need_queue
from millstream.queue.rules.sources import find_sources, own_logs
from millstream.queue.service.consuming import need_facts
from millstream.queue.service.peeking import PEEK_MAX, STATES, copies_of
from millstream.queue.service.reading import log_name
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store


class Attempted(Struct, frozen=True, array_like=True):
    """A message, and how its attempts went."""

    claim_id: int
    state: str
    log: str
    offset: int
    appended_ms: int
    tries: list[Try]


class ListAttempts(Read[list[Attempted]], frozen=True):
    """Messages that were ever claimed and are not forgotten, by claim number, with their attempts."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    count: int
    after: Signed = -1


class Unrouted(Struct, frozen=True, array_like=True):
    """What of a log a queue has not looked at."""

    log: str
    start: int
    stop: int
    own: bool
    """Whether it is the queue's inbox, to which no filter applies."""


class ListUnrouted(Read[list[Unrouted]], frozen=True):
    """Where routing stands in the logs of a queue."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


class SourcePosition(Struct, frozen=True, array_like=True):
    """Where a queue stands in one of its source logs."""

    log: str
    position: int
    """The next offset that it looks at."""
    start: int
    end: int


class ListPositions(Read[list[SourcePosition]], frozen=True):
    """Where a queue stands in the logs that it takes from; not in those of its own."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


def list_positions(store: Store, query: ListPositions) -> list[SourcePosition]:
    """The positions, in the order of the queue's sources."""

    def ask(view: View) -> list[SourcePosition]:
        queue = need_queue(view, query.queue)
        found = []
        for log_id in find_sources(view, query.queue, queue.spec):
            head = view.entity(keys.head(log_id), Head)
            if head.name not in own_logs(query.queue):
                position = head.next_at(queue.positions.get(log_id, 0))
                found.append(SourcePosition(head.name, position, head.start, head.end))
        return found

    return store.view(ask)


def list_unrouted(store: Store, query: ListUnrouted) -> list[Unrouted]:
    """The stretches that are not routed; of queues with an outside router none are given."""
    facts = need_facts(store, query.queue, whole=True)
    return [
        Unrouted(one.name, start, stop, one.name in facts.own)
        for one in facts.sources
        for start, stop in without(one.gaps, one.position, one.end)
    ]


def list_attempts(store: Store, query: ListAttempts) -> list[Attempted]:
    """A page of messages with their attempts."""
    if not 0 < query.count <= PEEK_MAX:
        raise InvalidInput(f"a page has from 1 to {PEEK_MAX:,} messages, not {query.count:,}")
    return list(islice(_attempts(store, query), query.count))


_NAMES = {number: name for name, number in STATES.items()}


def _attempts(store: Store, query: ListAttempts) -> Iterator[Attempted]:
    first = 0 if query.after < 0 else split_id(query.after)[1] + 1
    epoch_ms = store.state.time.epoch_ms()
    for bucket_id, bucket in copies_of(Reading(store), query.queue, None, first):
        low = max(0, first - split_id(bucket_id)[1])
        histories = trials_of(bucket, low, len(bucket.states))
        for span in bucket.sources(low, len(bucket.states)):
            for slot in range(span.slot, span.slot + span.count):
                name = _NAMES.get(bucket.states[slot])
                if name is None or not histories[slot - low]:
                    continue
                made = tries_of(histories[slot - low], epoch_ms)
                offset = span.offset + slot - span.slot
                log = log_name(store, span.log_id)
                yield Attempted(bucket_id + slot, name, log, offset, span.at_ms, made)
