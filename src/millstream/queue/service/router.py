"""Routing: finds the records of the logs that belong to a queue.

Routing reads logs outside the write lock, in bounded ranges. A claim places the result only if the
range was not routed meanwhile, so a message is assigned exactly once. A plain queue is routed a
window ahead; further messages stay in the log. A queue with priorities or groups is routed to the
end, because the best message may be the last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.head import Bounds, Head, without
from millstream.log.reading.damage import next_entry
from millstream.log.reading.reader import RowMoved, joined_entries_of, with_rows
from millstream.queue.model.grants import Routed
from millstream.queue.model.routing_marks import marks_of
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.interleaving import Look, Looked, interleave
from millstream.queue.rules.sources import Facts, QueueSource
from millstream.queue.service.decoded_entries import DecodedEntry, RecentEntries
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

if TYPE_CHECKING:
    from millstream.filters import Filter

WINDOW = 4_000
"""The most messages that a plain queue is routed ahead of its consumers."""

SCAN_RECORDS = 20_000
"""The records to read before the result is committed, so that progress is kept."""

UNKNOWN_LOOKED_AT = 32
"""The sample of non-matching records per entry for which the filter is asked about unknowns."""

PLACE_RECORDS = 2_000
"""The most messages that a commit enters into an index."""


def route(store: Store, facts: Facts, want: int) -> list[Routed]:
    """Read the logs until enough messages are found, or enough records are read."""
    spec = facts.spec
    condition = _condition(spec.filter)
    missing = PLACE_RECORDS if spec.indexed else max(want, WINDOW) - facts.fresh
    if not spec.indexed and facts.fresh >= want:
        return []

    def look(source: QueueSource, want: int) -> Looked:
        applied = None if source.name in facts.put_logs else condition
        return _look(store, source, spec, applied, want)

    if spec.in_order and len(facts.sources) > 1:
        return _in_order(store, facts, look, missing)
    all_routed = []
    for source in facts.sources:
        if missing > 0:
            routed = look(source, missing).routed
            missing -= sum(span.count for span in routed.spans)
            all_routed.append(routed)
    return all_routed


def route_inside(view: View, facts: Facts) -> list[Routed]:
    """Route all unrouted records of a queue without a filter, inside a transaction."""
    return [route_log_inside(view, facts.spec, source, source.end) for source in facts.sources]


def route_log_inside(view: View, spec: QueueSpec, source: QueueSource, stop: int) -> Routed:
    """Route a log up to an offset, without a filter, inside a transaction."""
    found_records = _View(source, spec, None, stop)
    for first, value in _entries(view, source, stop):
        if spec.looks_at_headers:
            found_records.take_matching(DecodedEntry(first, value))
        else:
            found_records.take_all(first, value)
    return found_records.looked().routed


class LookedAhead(dict[str, tuple[QueueSpec, dict[int, Looked]]]):
    """By queue: messages read from its logs that cannot be placed yet."""


def _in_order(store: Store, facts: Facts, look: Look, count_max: int) -> list[Routed]:
    """Return messages in the order of their appends; messages that cannot be placed yet are cached."""
    cache = store.caches.of(LookedAhead)
    spec, ahead = cache.pop(facts.name, (facts.spec, {}))
    if spec != facts.spec:
        ahead = {}
    all_routed = interleave(facts.sources, look, count_max, ahead)
    if ahead:
        cache[facts.name] = facts.spec, ahead
    return all_routed


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter | None:
    if not text:
        return None
    from millstream.filters import parse  # only queues with a filter pay for its parser

    return parse(text)


def _look(
    store: Store, source: QueueSource, spec: QueueSpec, condition: Filter | None, want: int
) -> Looked:
    recent = store.caches.of(RecentEntries)

    def look(_: Bounds, rows: Rows) -> Looked:
        return _look_in(rows, recent, source, spec, condition, want)

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
    """Return whether a log should still have the record at the routing position."""
    head = view.entity(keys.head(source.log_id), Head)
    at = source.position
    return not head.deleted and head.next_at(at) == at


def _passed_over(store: Store, source: QueueSource, error: CorruptionError | None) -> Looked:
    """Skip damaged records; nothing says which of them belong to the queue."""
    log_id, start = source.log_id, source.position

    def look(_: Bounds, rows: Rows) -> int:
        return next_entry(rows, log_id, error, start, source.end)

    stop = min(source.end, with_rows(store, log_id, look))
    stop = next((high for _, high in without(source.gaps, start, stop)), stop)
    skipped = [(start, stop)]
    return Looked(Routed(log_id, start, stop, [], skipped=skipped), 0)


def _look_in(
    rows: Rows,
    recent: RecentEntries,
    source: QueueSource,
    spec: QueueSpec,
    condition: Filter | None,
    want: int,
) -> Looked:
    stop = min(source.end, source.position + (SCAN_RECORDS if condition else want))
    view = _View(source, spec, condition, stop)
    try:
        if condition is None and not spec.looks_at_headers:
            for first, value in _entries(rows, source, stop):
                if view.take_all(first, value) >= want:
                    break
        else:
            for entry in recent.read(rows, source, stop):
                if view.take_matching(entry) >= want:
                    break
    except (CorruptionError, RowMoved):
        if view.position == source.position:
            raise  # else the sound records are taken first, and the next look begins at the damage
    return view.looked()


def _entries(rows: Rows, source: QueueSource, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of a log from the routing position on, across its gaps."""
    for low, high in without(source.gaps, source.position, stop):
        yield from joined_entries_of(rows, source.log_id, start=low, stop=high)


class _View:
    """The messages found so far in a log."""

    def __init__(
        self, source: QueueSource, spec: QueueSpec, condition: Filter | None, stop: int
    ) -> None:
        self.position = source.position
        self._source = source
        self._spec = spec
        self._condition = condition
        self._stop = stop
        self._spans: list[Span] = []
        self._marks: list[RoutingMark] | None = [] if spec.looks_at_headers else None
        self._count = self._unknown = self._until_ms = 0

    def looked(self) -> Looked:
        """Return everything found so far."""
        source = self._source
        routed = Routed(
            source.log_id,
            source.position,
            self.position,
            self._spans,
            self._marks,
            self._unknown,
        )
        return Looked(routed, self._until_ms)

    def take_all(self, first: int, value: bytes) -> int:
        """Take every record of an entry; return the number taken so far."""
        indexes = self._wanted(first, first + entries.count(value))
        self._spans += _whole(self._source.log_id, first, value, indexes)
        self._until_ms = max(self._until_ms, self._spans[-1].at_ms)
        return self._took(first, indexes, len(indexes))

    def take_matching(self, decoded: DecodedEntry) -> int:
        """Take the matching records of an entry; return the number taken so far."""
        source, condition = self._source, self._condition
        indexes = self._wanted(decoded.first, decoded.end)
        matching: Sequence[int] = indexes
        if condition is not None:
            matching = _matching(source, decoded, indexes, condition)
            if len(matching) < len(indexes):
                self._unknown += _unknown(source, decoded, indexes, matching, condition)
        if self._marks is not None:
            keys, headers = decoded.entry.keys, decoded.headers
            self._marks += marks_of(self._spec, keys, headers, matching)
        self._spans += joined_spans(source.log_id, decoded.first, decoded.entry, matching)
        last_ms = decoded.entry.appended[indexes.stop - 1]
        self._until_ms = max(self._until_ms, last_ms)
        return self._took(decoded.first, indexes, len(matching))

    def _wanted(self, first: int, end: int) -> range:
        """Return the unread records of an entry, as a range of indexes."""
        low = max(self.position, first)
        return range(low - first, min(self._stop, end) - first)

    def _took(self, first: int, indexes: range, count: int) -> int:
        self.position = first + indexes.stop
        self._count += count
        return self._count


def _whole(log_id: int, first: int, value: bytes, indexes: range) -> list[Span]:
    """Return records of an entry as spans; a block appended at a single time needs no decoding."""
    if blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        if not header.columns & blocks.APPENDED:
            start, first_id = indexes.start, header.first_id + indexes.start
            at_ms = header.appended_ms
            return [Span(0, len(indexes), log_id, first + start, first_id, at_ms)]
    return joined_spans(log_id, first, entries.decode_places(value), indexes)


def _matching(
    source: QueueSource, decoded: DecodedEntry, indexes: range, condition: Filter
) -> Sequence[int]:
    """Return the matching records of an entry.

    If a filter can match only certain texts of a header, only records with these texts are tested.
    """
    entry, headers = decoded.entry, decoded.headers
    if condition.anchor is None:
        candidates: Sequence[int] = indexes
        cut = slice(indexes.start, indexes.stop)
        columns = headers[cut], entry.keys[cut], entry.timestamps[cut]
        valid = None if entry.valid is None else entry.valid[cut]
    else:
        name, texts = condition.anchor
        candidates = decoded.having(name, texts, indexes)
        keys, times = entry.keys, entry.timestamps
        columns = (
            [headers[i] for i in candidates],
            [keys[i] for i in candidates],
            [times[i] for i in candidates],
        )
        valid = None if entry.valid is None else [entry.valid[i] for i in candidates]
    matched = condition.match_many(
        columns[0], keys=columns[1], timestamps=columns[2], log=source.name, valid=valid
    )
    return [index for index, yes in zip(candidates, matched, strict=True) if yes]


def _unknown(
    source: QueueSource,
    decoded: DecodedEntry,
    indexes: range,
    matching: Sequence[int],
    condition: Filter,
) -> int:
    """Estimate for how many records the filter has no answer, mostly due to a missing header.

    The count is for operators, so a sample of a long entry is enough.
    """
    entry, headers, matched = decoded.entry, decoded.headers, set(matching)
    unmatched = len(indexes) - len(matching)
    drawn: Sequence[int] = indexes
    if unmatched > UNKNOWN_LOOKED_AT:
        drawn = random.choices(indexes, k=2 * UNKNOWN_LOOKED_AT)
    sample = [index for index in drawn if index not in matched][:UNKNOWN_LOOKED_AT]
    if not sample:
        return 0
    unknown = condition.count_unknown(
        [headers[index] for index in sample],
        keys=[entry.keys[index] for index in sample],
        timestamps=[entry.timestamps[index] for index in sample],
        log=source.name,
        valid=[not entry.is_null(index) for index in sample],
    )
    return round(unknown * unmatched / len(sample))


def joined_spans(
    log_id: int, first: int, entry: entries.Places, indexes: Sequence[int]
) -> list[Span]:
    """Return records as the fewest spans: neighbours with adjacent ids and the same append time."""
    spans: list[Span] = []
    ids, appended = entry.ids, entry.appended
    if isinstance(indexes, range) and isinstance(ids, range):
        at = indexes.start
        for at_ms, run in groupby(appended[at : indexes.stop]):
            count = len(list(run))
            spans.append(Span(0, count, log_id, first + at, ids[at], at_ms))
            at += count
        return spans
    start = stop = -1
    for index in indexes:
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
