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

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.head import Bounds, Head, without
from millstream.log.reading.damage import next_entry
from millstream.log.reading.reader import RowMoved, joined_entries_of, with_rows
from millstream.queue.commands import Routed
from millstream.queue.model.marking import mark_of
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.interleaving import Look, Looked, interleave
from millstream.queue.rules.sources import Facts, QueueSource
from millstream.queue.service.decoding import DecodedEntry, RecentEntries
from millstream.store.state.view import Rows, View
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


def route_inside(view: View, facts: Facts) -> list[Routed]:
    """All records that a plain queue without a filter has not looked at, inside a transaction."""
    found = []
    for source in facts.sources:
        taken = _View(source, facts.spec, None, source.end)
        for first, value in _entries(view, source, source.end):
            taken.take_all(first, value)
        found.append(taken.looked().routed)
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
            for found in recent.read(rows, source, stop):
                if view.take_matching(found) >= want:
                    break
    except (CorruptionError, RowMoved):
        if view.position == source.position:
            raise  # else what is sound is taken first, and the next look begins at the damage
    return view.looked()


def _entries(rows: Rows, source: QueueSource, stop: int) -> Iterator[tuple[int, bytes]]:
    """The entries of a log from where routing stands, across its gaps."""
    for low, high in without(source.gaps, source.position, stop):
        yield from joined_entries_of(rows, source.log_id, start=low, stop=high)


class _View:
    """What a look at a log has found so far."""

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
        """All of it."""
        source = self._source
        routed = Routed(
            source.log_id,
            source.position,
            self.position,
            self._spans,
            self._marks,
            self._unknown,
            source.setbacks,
        )
        return Looked(routed, self._until_ms)

    def take_all(self, first: int, value: bytes) -> int:
        """Take every record of an entry; how many were taken so far."""
        wanted = self._wanted(first, first + entries.count(value))
        self._spans += _whole(self._source.log_id, first, value, wanted)
        self._until_ms = max(self._until_ms, self._spans[-1].at_ms)
        return self._took(first, wanted, len(wanted))

    def take_matching(self, found: DecodedEntry) -> int:
        """Take the records of an entry that match; how many were taken so far."""
        source, condition = self._source, self._condition
        wanted = self._wanted(found.first, found.end)
        taken: Sequence[int] = wanted
        if condition is not None:
            taken = _matching(source, found, wanted, condition)
            if len(taken) < len(wanted):
                self._unknown += _unknown(source, found, wanted, taken, condition)
        if self._marks is not None:
            keys, headers = found.entry.keys, found.headers
            self._marks += [mark_of(self._spec, keys[i], headers[i]) for i in taken]
        self._spans += joined_spans(source.log_id, found.first, found.entry, taken)
        last_ms = found.entry.appended[wanted.stop - 1]
        self._until_ms = max(self._until_ms, last_ms)
        return self._took(found.first, wanted, len(taken))

    def _wanted(self, first: int, end: int) -> range:
        """Which records of an entry are to be looked at."""
        low = max(self.position, first)
        return range(low - first, min(self._stop, end) - first)

    def _took(self, first: int, wanted: range, count: int) -> int:
        self.position = first + wanted.stop
        self._count += count
        return self._count


def _whole(log_id: int, first: int, value: bytes, wanted: range) -> list[Span]:
    """Records of one entry as spans, without a look at each if they were appended together."""
    if blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        if not header.columns & blocks.APPENDED:
            start, first_id = wanted.start, header.first_id + wanted.start
            at_ms = header.appended_ms
            return [Span(0, len(wanted), log_id, first + start, first_id, at_ms)]
    return joined_spans(log_id, first, entries.decode_places(value), wanted)


def _matching(
    source: QueueSource, found: DecodedEntry, wanted: range, condition: Filter
) -> Sequence[int]:
    """Which records of an entry match.

    Where only some texts of one header can match, only records that have one of these are asked.
    """
    entry, headers = found.entry, found.headers
    if condition.anchor is None:
        some: Sequence[int] = wanted
        cut = slice(wanted.start, wanted.stop)
        columns = headers[cut], entry.keys[cut], entry.timestamps[cut]
        valid = None if entry.valid is None else entry.valid[cut]
    else:
        name, texts = condition.anchor
        some = found.having(name, texts, wanted)
        keys, times = entry.keys, entry.timestamps
        columns = [headers[i] for i in some], [keys[i] for i in some], [times[i] for i in some]
        valid = None if entry.valid is None else [entry.valid[i] for i in some]
    matched = condition.match_many(
        columns[0], keys=columns[1], timestamps=columns[2], log=source.name, valid=valid
    )
    return [index for index, yes in zip(some, matched, strict=True) if yes]


def _unknown(
    source: QueueSource,
    found: DecodedEntry,
    wanted: range,
    taken: Sequence[int],
    condition: Filter,
) -> int:
    """How many records the filter cannot decide on, mostly since a header is missing.

    The count is for operators, so of a long entry only a sample is looked at.
    """
    entry, headers, matched = found.entry, found.headers, set(taken)
    others = len(wanted) - len(taken)
    asked: Sequence[int] = wanted
    if others > UNKNOWN_LOOKED_AT:
        asked = random.choices(wanted, k=2 * UNKNOWN_LOOKED_AT)
    some = [index for index in asked if index not in matched][:UNKNOWN_LOOKED_AT]
    if not some:
        return 0
    unknown = condition.count_unknown(
        [headers[index] for index in some],
        keys=[entry.keys[index] for index in some],
        timestamps=[entry.timestamps[index] for index in some],
        log=source.name,
        valid=[not entry.is_null(index) for index in some],
    )
    return round(unknown * others / len(some))


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
