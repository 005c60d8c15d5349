"""Routing: which records of the logs belong to a queue.

Logs are looked at outside the write lock, a bounded stretch at a time. What was found is handed to
a claim, which takes it over only if nobody else has routed that stretch meanwhile: a message is
assigned exactly once. A plain queue is routed a window ahead; what waits stays in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.head import Head, Name
from millstream.log.reader import entries_of
from millstream.queue.commands import Routed
from millstream.queue.slots import Span
from millstream.queue.spec import QueueSpec
from millstream.queue.state import QueueState
from millstream.record import NO_HEADERS, Headers
from millstream.store.engine import Snapshot
from millstream.store.state import State
from millstream.store.store import Store

if TYPE_CHECKING:
    from millstream.filters import Filter

WINDOW = 1_000
"""Messages that a plain queue is routed ahead of its consumers."""

SCAN_RECORDS = 20_000
"""Records looked at before what was found is committed, so that progress is kept."""

LOGS_PER_QUEUE = 1_000

_decode_headers = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | None]).decode


class Source(Struct, frozen=True):
    """A log that a queue takes from, and where routing stands in it."""

    log_id: int
    name: str
    position: int
    end: int


class Facts(Struct, frozen=True):
    """What routing needs to know of a queue."""

    spec: QueueSpec
    paused: bool
    untouched: int
    sources: list[Source]
    inbox: str


def facts_of(state: State, snapshot: Snapshot, name: str) -> Facts | None:
    """Where a queue stands; None if there is no such queue."""
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    if not queue.exists():
        return None
    untouched = sum(stop - start for _, (start, stop) in queue.pieces(queue.fresh, queue.next))
    sources = []
    for log_id in find_sources(state, snapshot, name, queue.spec):
        head = state.entity(keys.head(log_id), snapshot)
        assert isinstance(head, Head)
        position = max(queue.positions.get(log_id, 0), head.dropped)
        sources.append(Source(log_id, head.name, position, head.end))
    return Facts(queue.spec, queue.paused, untouched, sources, inbox_of(name))


def inbox_of(queue: str) -> str:
    """The log that messages put straight to a queue are appended to."""
    return f"queue:{queue}"


def find_sources(state: State, snapshot: Snapshot, queue: str, spec: QueueSpec) -> list[int]:
    """The ids of the logs that a queue takes from: its inbox, names, and what patterns match."""
    found: dict[int, None] = {}
    for source in (inbox_of(queue), *spec.sources):
        literal = source.split("*")[0].split("?")[0]
        if literal == source:
            names = [keys.log_name(source)]
        else:
            start = keys.log_name(literal)
            names = state.find(start, keys.after(start), snapshot, limit=LOGS_PER_QUEUE)
        for key in names:
            name = state.entity(key, snapshot)
            assert isinstance(name, Name)
            text = key[2:].decode()
            if name.log_id and (text == source or _may_match(text, spec)):
                found[name.log_id] = None
    return list(found)


def _may_match(log: str, spec: QueueSpec) -> bool:
    """Whether a pattern takes a log; inboxes and the dead letters are taken only by name."""
    return not log.startswith(inbox_of("")) and log != spec.dead_letter and spec.takes_from(log)


def route(store: Store, facts: Facts, want: int) -> list[Routed]:
    """Look ahead in the logs until enough was found, or enough was looked at."""
    missing = max(want, WINDOW) - facts.untouched
    if facts.untouched >= want or missing <= 0:
        return []
    condition = _condition(facts.spec.filter)
    found = []
    for source in facts.sources:
        if source.position < source.end and missing > 0:
            routed = _look(
                store, source, condition if source.name != facts.inbox else None, missing
            )
            missing -= sum(span.count for span in routed.spans)
            found.append(routed)
    return found


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter | None:
    if not text:
        return None
    from millstream.filters import parse  # only who uses filters pays for their parser

    return parse(text)


def _look(store: Store, source: Source, condition: Filter | None, want: int) -> Routed:
    stop = min(source.end, source.position + (SCAN_RECORDS if condition else want))
    spans: list[Span] = []
    position = source.position
    with store.engine.read() as snapshot:
        for first, value in entries_of(
            store.state.overlay, snapshot, source.log_id, start=position, stop=stop
        ):
            low = position - first
            high = min(stop, first + entries.count(value)) - first
            spans += _matching(source, first, value, range(low, high), condition)
            position = first + high
            if sum(span.count for span in spans) >= want:
                break
    return Routed(source.log_id, source.position, position, spans)


def _matching(
    source: Source, first: int, value: bytes, wanted: range, condition: Filter | None
) -> list[Span]:
    """The records of one entry that a queue takes, as spans."""
    if condition is None and blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        start = wanted.start
        return [Span(0, len(wanted), source.log_id, first + start, header.first_id + start)]
    entry, headers = _decoded(value)
    taken: Sequence[int] = wanted
    if condition is not None:
        cut = slice(wanted.start, wanted.stop)
        matched = condition.match_many(
            headers[cut],
            keys=entry.keys[cut],
            timestamps=entry.timestamps[cut],
            log=source.name,
        )
        taken = [index for index, yes in zip(wanted, matched, strict=True) if yes]
    return _joined(source.log_id, first, entry.ids, taken)


@lru_cache(maxsize=32)
def _decoded(value: bytes) -> tuple[entries.Entry, list[Headers]]:
    """An entry and its headers; the queues on a log look at the same ones, one after the other."""
    entry = entries.decode(value)
    return entry, [_decode_headers(one) if one else NO_HEADERS for one in entry.headers]


def _joined(log_id: int, first: int, ids: Sequence[int], taken: Sequence[int]) -> list[Span]:
    spans: list[Span] = []
    run = None
    for index in taken:
        if run is not None and index == run[1] and ids[index] == ids[run[0]] + index - run[0]:
            run = (run[0], index + 1)
            continue
        if run is not None:
            spans.append(Span(0, run[1] - run[0], log_id, first + run[0], ids[run[0]]))
        run = (index, index + 1)
    if run is not None:
        spans.append(Span(0, run[1] - run[0], log_id, first + run[0], ids[run[0]]))
    return spans
