"""Bulk reads for analytics and outside routers: messages with attempts, unrouted records,
positions.

The reads change no state.
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
from millstream.queue.model.own_logs import own_logs
from millstream.queue.rules.lookup import need_queue
from millstream.queue.rules.sources import find_sources
from millstream.queue.service.backlog import need_facts
from millstream.queue.service.payloads import log_name
from millstream.queue.service.peek import PEEK_MAX, STATES, copies_of
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store


class Attempted(Struct, frozen=True, array_like=True):
    """A message with its attempts."""

    claim_id: int
    state: str
    log: str
    offset: int
    appended_ms: int
    tries: list[Try]


class ListAttempts(Read[list[Attempted]], frozen=True):
    """Return messages that were ever claimed and are not forgotten, by claim number, with attempts."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    count: int
    after: Signed = -1


class Unrouted(Struct, frozen=True, array_like=True):
    """A range of a log that a queue has not routed."""

    log: str
    start: int
    stop: int
    own: bool
    """Whether the log is the queue's inbox, to which no filter applies."""


class ListUnrouted(Read[list[Unrouted]], frozen=True):
    """Return the unrouted ranges in the logs of a queue."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


class SourcePosition(Struct, frozen=True, array_like=True):
    """The routing position of a queue in a source log."""

    log: str
    position: int
    """The next offset to route."""
    start: int
    end: int


class ListPositions(Read[list[SourcePosition]], frozen=True):
    """Return the routing positions in the sources of a queue, without its inbox."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


def list_positions(store: Store, query: ListPositions) -> list[SourcePosition]:
    """Return the positions, in the order of the queue's sources."""

    def ask(view: View) -> list[SourcePosition]:
        queue = need_queue(view, query.queue)
        positions = []
        for log_id in find_sources(view, query.queue, queue.spec):
            head = view.entity(keys.head(log_id), Head)
            if head.name not in own_logs(query.queue):
                position = head.next_at(queue.positions.get(log_id, 0))
                positions.append(SourcePosition(head.name, position, head.start, head.end))
        return positions

    return store.view(ask)


def list_unrouted(store: Store, query: ListUnrouted) -> list[Unrouted]:
    """Return the unrouted ranges; empty for queues with an outside router."""
    facts = need_facts(store, query.queue, all_logs=True)
    return [
        Unrouted(source.name, start, stop, source.name in facts.put_logs)
        for source in facts.sources
        for start, stop in without(source.gaps, source.position, source.end)
    ]


def list_attempts(store: Store, query: ListAttempts) -> list[Attempted]:
    """Return a page of messages with their attempts."""
    if not 0 < query.count <= PEEK_MAX:
        raise InvalidInput(f"a page has from 1 to {PEEK_MAX:,} messages, not {query.count:,}")
    return list(islice(_attempts(store, query), query.count))


_NAMES = {number: name for name, number in STATES.items() if name != "delayed"}


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
                tries = tries_of(histories[slot - low], epoch_ms)
                offset = span.offset + slot - span.slot
                log = log_name(store, span.log_id)
                yield Attempted(bucket_id + slot, name, log, offset, span.at_ms, tries)
