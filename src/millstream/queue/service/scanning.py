"""Scanning: a queue's messages and their attempts in bulk, without changing anything.

For analytics.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.command import Read, Signed, Traits, on_queue
from millstream.errors import InvalidInput
from millstream.format.ids import split_id
from millstream.log.head import without
from millstream.queue.model.message import Try, tries_of
from millstream.queue.service.consuming import need_facts
from millstream.queue.service.peeking import PEEK_MAX, STATES, copies_of
from millstream.queue.service.reading import log_name
from millstream.store.store import Store
from millstream.store.supposing import Reading


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
    found = _attempts(store, query)
    names: dict[int, str] = {}
    for _, _, log_id, *_ in found:
        if log_id not in names:
            names[log_id] = log_name(store, log_id)
    return [
        Attempted(claim_id, state, names[log_id], offset, at_ms, tries)
        for claim_id, state, log_id, offset, at_ms, tries in found
    ]


_Row = tuple[int, str, int, int, int, list[Try]]
_NAMES = {number: name for name, number in STATES.items()}


def _attempts(store: Store, query: ListAttempts) -> list[_Row]:
    first = 0 if query.after < 0 else split_id(query.after)[1] + 1
    epoch_ms = store.state.time.epoch_ms()
    found: list[_Row] = []
    for bucket_id, bucket in copies_of(Reading(store), query.queue, None, first):
        low = max(0, first - split_id(bucket_id)[1])
        histories = bucket.histories(low, len(bucket.states))
        for span in bucket.sources(low, len(bucket.states)):
            for slot in range(span.slot, span.slot + span.count):
                name = _NAMES.get(bucket.states[slot])
                if name is None or not histories[slot - low]:
                    continue
                made = tries_of(histories[slot - low], epoch_ms)
                offset = span.offset + slot - span.slot
                claim_id = bucket_id + slot
                found.append((claim_id, name, span.log_id, offset, span.at_ms, made))
                if len(found) == query.count:
                    return found
    return found
