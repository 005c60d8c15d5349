"""Interleaving: merges the messages of several logs in the order of their appends.

Routing reads each log some way ahead. All messages older than the time that every log was read to
can be placed, because no older record can follow. Newer messages are kept for the next call.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from millstream.queue.model.grants import Routed
from millstream.queue.model.slots import Span
from millstream.queue.rules.sources import QueueSource

RECORDS_MORE = 16
"""The least number of records to read in a log that delays the merge."""

ROUNDS_MAX = 64


class Looked(NamedTuple):
    """A range of a log that was read, and the append time of its last record."""

    routed: Routed
    until_ms: int


Look = Callable[[QueueSource, int], Looked]
"""Reads a log from its position on, for about `count` messages."""


def interleave(
    sources: Sequence[QueueSource], look: Look, count_max: int, ahead: dict[int, Looked]
) -> list[Routed]:
    """Return about `count_max` messages of several logs that no older message can follow.

    `ahead` has messages by log that earlier calls read and could not place; it is updated.
    """
    each = max(1, count_max // len(sources))
    stretches = [_known(ahead, source) or look(source, each) for source in sources]
    slowest = [
        (stretch.until_ms, at)
        for at, (stretch, source) in enumerate(zip(stretches, sources, strict=True))
        if stretch.routed.stop < source.end
    ]
    heapq.heapify(slowest)
    for _ in range(ROUNDS_MAX):
        if not slowest or _before(stretches, slowest[0][0]) >= count_max // 2:
            break
        for _ in range(1 + len(slowest) // 8):
            if slowest:
                _look_further(sources, look, max(each, RECORDS_MORE), stretches, slowest)
    ahead.clear()
    if not slowest:
        return [stretch.routed for stretch in stretches]
    until_ms = slowest[0][0]
    placed = []
    for stretch in stretches:
        routed, later = _cut(stretch.routed, until_ms)
        if later is not None:
            ahead[later.log_id] = Looked(later, stretch.until_ms)
        if routed.stop > routed.start:
            placed.append(routed)
    return placed


def _known(ahead: dict[int, Looked], source: QueueSource) -> Looked | None:
    stretch = ahead.get(source.log_id)
    if stretch is None or stretch.routed.start != source.position:
        return None
    return stretch


def _before(stretches: Sequence[Looked], until_ms: int) -> int:
    """Return the number of spans that can be placed."""
    return sum(bisect_right(arrivals_ms(stretch.routed.spans), until_ms) for stretch in stretches)


def _look_further(
    sources: Sequence[QueueSource],
    look: Look,
    want: int,
    stretches: list[Looked],
    slowest: list[tuple[int, int]],
) -> None:
    """Read more of the log that delays the merge."""
    _, at = slowest[0]
    source, stretch = sources[at], stretches[at]
    further = look(replace(source, position=stretch.routed.stop), want)
    stretches[at] = _joined(stretch, further)
    if stretches[at].routed.stop >= source.end:
        heapq.heappop(slowest)
    else:
        heapq.heapreplace(slowest, (stretches[at].until_ms, at))


def _joined(first: Looked, second: Looked) -> Looked:
    marks = None
    if first.routed.marks is not None and second.routed.marks is not None:
        marks = first.routed.marks + second.routed.marks
    routed = replace(
        first.routed,
        stop=max(first.routed.stop, second.routed.stop),
        spans=first.routed.spans + second.routed.spans,
        marks=marks,
        unknown=first.routed.unknown + second.routed.unknown,
        skipped=first.routed.skipped + second.routed.skipped,
    )
    return Looked(routed, max(first.until_ms, second.until_ms))


def arrivals_ms(spans: Iterable[Span]) -> list[int]:
    """Return the arrival time of each span: its append time, or that of an earlier span if later."""
    return list(accumulate((span.at_ms for span in spans), max))


def _cut(routed: Routed, until_ms: int) -> tuple[Routed, Routed | None]:
    """Split routed messages at a time."""
    span_count = bisect_right(arrivals_ms(routed.spans), until_ms)
    if span_count == len(routed.spans):
        return routed, None
    count = sum(span.count for span in routed.spans[:span_count])
    marks = routed.marks
    at = routed.spans[span_count].offset
    share = (at - routed.start) / (routed.stop - routed.start)
    unknown = round(routed.unknown * share)
    before = replace(
        routed,
        stop=at,
        spans=routed.spans[:span_count],
        marks=None if marks is None else marks[:count],
        unknown=unknown,
        skipped=[skipped_range for skipped_range in routed.skipped if skipped_range[0] < at],
    )
    later = replace(
        routed,
        start=at,
        spans=routed.spans[span_count:],
        marks=None if marks is None else marks[count:],
        unknown=routed.unknown - unknown,
        skipped=[skipped_range for skipped_range in routed.skipped if skipped_range[0] >= at],
    )
    return before, later
