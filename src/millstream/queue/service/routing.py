"""Routing: which records of the logs belong to a queue.

Logs are looked at outside the write lock, a bounded stretch at a time. What was found is handed to
a claim, which takes it over only if that stretch was not routed meanwhile: a message is
assigned exactly once. A plain queue is routed a window ahead; what waits stays in the log. One that
chooses by priority or group is routed to the end, for the best message may be the last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.damage import next_entry
from millstream.log.head import Bounds, Head, without
from millstream.log.reader import RowMoved, joined_entries_of, with_rows
from millstream.queue.commands import Routed
from millstream.queue.model.marking import mark_of
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.interleaving import Look, Looked, interleave
from millstream.queue.rules.sources import Facts, QueueSource
from millstream.record import NO_HEADERS, Headers
from millstream.store.rows import Rows, View
from millstream.store.store import Store

if TYPE_CHECKING:
    from millstream.filters import Filter

WINDOW = 4_000
"""Messages that a plain queue is routed ahead of its consumers."""

SCAN_RECORDS = 20_000
"""Records looked at before what was found is committed, so that progress is kept."""

UNKNOWN_LOOKED_AT = 32
"""Of the records of an entry that do not match, so many are asked whether that is certain."""

PLACE_RECORDS = 2_000
"""Messages that one commit enters into an index."""

_decode_headers = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | None]).decode


def route(store: Store, facts: Facts, want: int) -> list[Routed]:
    """Look ahead in the logs until enough was found, or enough was looked at."""
    spec = facts.spec
    condition = _condition(spec.filter)
    missing = PLACE_RECORDS if spec.indexed else max(want, WINDOW) - facts.untouched
    if not spec.indexed and facts.untouched >= want:
        return []

    def look(source: QueueSource, want: int) -> Looked:
        wanted = None if source.name in facts.own else condition
        return _look(store, source, spec, wanted, want)

    if spec.in_order and len(facts.sources) > 1:
        return _in_order(store, facts, look, missing)
    found = []
    for source in facts.sources:
        if missing > 0:
            routed = look(source, missing).routed
            missing -= sum(span.count for span in routed.spans)
            found.append(routed)
    return found


class LookedAhead(dict[str, tuple[QueueSpec, dict[int, Looked]]]):
    """By queue: what was found in each of its logs before it was its turn."""


def _in_order(store: Store, facts: Facts, look: Look, most: int) -> list[Routed]:
    """What was found, in the order of time; what could not be placed is kept for the next time."""
    kept = store.caches.of(LookedAhead)
    spec, ahead = kept.pop(facts.name, (facts.spec, {}))
    if spec != facts.spec:
        ahead = {}
    found = interleave(facts.sources, look, most, ahead)
    if ahead:
        kept[facts.name] = facts.spec, ahead
    return found


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter | None:
    if not text:
        return None
    from millstream.filters import parse  # only queues with a filter pay for its parser

    return parse(text)


def _look(
    store: Store, source: QueueSource, spec: QueueSpec, condition: Filter | None, want: int
) -> Looked:
    def look(_: Bounds, rows: Rows) -> Looked:
        return _look_in(rows, source, spec, condition, want)

    try:
        return with_rows(store, source.log_id, look)
    except CorruptionError as error:
        return _passed_over(store, source, error)
    except RowMoved:
        pass
    if store.view(partial(_is_there, source=source)):
        return _passed_over(store, source, None)
    return Looked(Routed(source.log_id, source.position, source.position, []), 0)


def _is_there(view: View, source: QueueSource) -> bool:
    """Whether a log should still have the record at which routing stands."""
    head = view.entity(keys.head(source.log_id), Head)
    at = source.position
    return not head.deleted and head.setbacks == source.setbacks and head.next_at(at) == at


def _passed_over(store: Store, source: QueueSource, error: CorruptionError | None) -> Looked:
    """Pass over damage: which of its records belong to the queue cannot be known."""
    log_id, start = source.log_id, source.position

    def look(_: Bounds, rows: Rows) -> int:
        return next_entry(rows, log_id, error, start, source.end)

    stop = min(source.end, with_rows(store, log_id, look))
    stop = next((high for _, high in without(source.gaps, start, stop)), stop)
    skipped = [(start, stop)]
    return Looked(Routed(log_id, start, stop, [], setbacks=source.setbacks, skipped=skipped), 0)


def _look_in(
    rows: Rows,
    source: QueueSource,
    spec: QueueSpec,
    condition: Filter | None,
    want: int,
) -> Looked:
    stop = min(source.end, source.position + (SCAN_RECORDS if condition else want))
    spans: list[Span] = []
    marks: list[RoutingMark] | None = [] if spec.looks_at_headers else None
    position = source.position
    count = unknown = until_ms = 0
    try:
        for first, value in _entries(rows, source, stop):
            position = max(position, first)
            low = position - first
            high = min(stop, first + entries.count(value)) - first
            more, taken = _matching(source, first, value, range(low, high), condition)
            if marks is not None:
                entry, headers = decoded_entry(value)
                marks += [mark_of(spec, entry.keys[i], headers[i]) for i in taken]
            spans += more
            if condition is not None and len(taken) < high - low:
                unknown += _unknown(source, value, range(low, high), taken, condition)
            if len(taken) == high - low:
                until_ms = max(until_ms, spans[-1].at_ms)
            else:
                until_ms = max(until_ms, decoded_entry(value)[0].appended[high - 1])
            position = first + high
            count += len(taken)
            if count >= want:
                break
    except (CorruptionError, RowMoved):
        if position == source.position:
            raise  # else what is sound is taken first, and the next look begins at the damage
    start = source.position
    routed = Routed(source.log_id, start, position, spans, marks, unknown, source.setbacks)
    return Looked(routed, until_ms)


def _entries(rows: Rows, source: QueueSource, stop: int) -> Iterator[tuple[int, bytes]]:
    """The entries of a log from where routing stands, across its gaps."""
    for low, high in without(source.gaps, source.position, stop):
        yield from joined_entries_of(rows, source.log_id, start=low, stop=high)


def _matching(
    source: QueueSource, first: int, value: bytes, wanted: range, condition: Filter | None
) -> tuple[list[Span], Sequence[int]]:
    """The records of one entry that a queue takes, as spans, and which they are."""
    if condition is None and blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        if not header.columns & blocks.APPENDED:
            start, at_ms = wanted.start, header.appended_ms
            first_id = header.first_id + start
            whole = Span(0, len(wanted), source.log_id, first + start, first_id, at_ms)
            return [whole], wanted
    if condition is None:
        places = entries.decode_places(value)
        return joined_spans(source.log_id, first, places, wanted), wanted
    entry, headers = decoded_entry(value)
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
    return joined_spans(source.log_id, first, entry, taken), taken


def _unknown(
    source: QueueSource, value: bytes, wanted: range, taken: Sequence[int], condition: Filter
) -> int:
    """How many records the filter cannot decide on, mostly since a header is missing.

    The count is for operators, so of a long entry only a sample is looked at.
    """
    entry, headers = decoded_entry(value)
    matched = set(taken)
    others = [index for index in wanted if index not in matched]
    some = random.sample(others, min(len(others), UNKNOWN_LOOKED_AT))
    found = condition.count_unknown(
        [headers[index] for index in some],
        keys=[entry.keys[index] for index in some],
        timestamps=[entry.timestamps[index] for index in some],
        log=source.name,
    )
    return round(found * len(others) / len(some))


@lru_cache(maxsize=32)
def decoded_entry(value: bytes) -> tuple[entries.Entry, list[Headers]]:
    """An entry and its headers; the queues on a log look at the same ones, one after the other."""
    entry = entries.decode(value)
    return entry, [_decode_headers(one) if one else NO_HEADERS for one in entry.headers]


def joined_spans(
    log_id: int, first: int, entry: entries.Places, taken: Sequence[int]
) -> list[Span]:
    """Records as the fewest spans: neighbours with adjacent ids that were appended together."""
    spans: list[Span] = []
    ids, appended = entry.ids, entry.appended
    if isinstance(taken, range) and isinstance(ids, range):
        at = taken.start
        for at_ms, same in groupby(appended[at : taken.stop]):
            count = len(list(same))
            spans.append(Span(0, count, log_id, first + at, ids[at], at_ms))
            at += count
        return spans
    start = stop = -1
    for index in taken:
        if (
            index == stop
            and ids[index] == ids[start] + index - start
            and appended[index] == appended[start]
        ):
            stop += 1
            continue
        if start >= 0:
            spans.append(Span(0, stop - start, log_id, first + start, ids[start], appended[start]))
        start, stop = index, index + 1
    if start >= 0:
        spans.append(Span(0, stop - start, log_id, first + start, ids[start], appended[start]))
    return spans
