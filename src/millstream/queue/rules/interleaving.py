"""Interleaving: what was found in several logs, in the order in which it was appended.

Each log is looked at some way ahead. What was appended before the time to which all of them were looked
at can be placed: nothing older is left. The rest is kept, for the next call begins with it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from millstream.queue.commands import Routed
from millstream.queue.model.slots import Span
from millstream.queue.rules.sources import QueueSource

RECORDS_MORE = 16
"""Records that are looked at, at least, in a log that holds others back."""

ROUNDS_MAX = 64


class Looked(NamedTuple):
    """A stretch of a log that was looked at, and when the last record of it was appended."""

    routed: Routed
    until_ms: int


Look = Callable[[QueueSource, int], Looked]
"""Look at a log from its position on, for about so many messages."""


def interleave(
    sources: Sequence[QueueSource], look: Look, most: int, ahead: dict[int, Looked]
) -> list[Routed]:
    """About `most` messages of several logs that nothing older can follow.

    `ahead` has what was looked at before and could not be placed, by log; it is brought up to date.
    """
    each = max(1, most // len(sources))
    looked = [_known(ahead, source) or look(source, each) for source in sources]
    least = [
        (found.until_ms, at)
        for at, (found, source) in enumerate(zip(looked, sources, strict=True))
        if found.routed.stop < source.end
    ]
    heapq.heapify(least)
    for _ in range(ROUNDS_MAX):
        if not least or _before(looked, least[0][0]) >= most // 2:
            break
        for _ in range(1 + len(least) // 8):
            if least:
                _look_further(sources, look, max(each, RECORDS_MORE), looked, least)
    ahead.clear()
    if not least:
        return [found.routed for found in looked]
    until_ms = least[0][0]
    placed = []
    for found in looked:
        routed, rest = _cut(found.routed, until_ms)
        if rest is not None:
            ahead[rest.log_id] = Looked(rest, found.until_ms)
        if routed.stop > routed.start:
            placed.append(routed)
    return placed


def _known(ahead: dict[int, Looked], source: QueueSource) -> Looked | None:
    found = ahead.get(source.log_id)
    if found is None or found.routed.start != source.position:
        return None
    return found if found.routed.setbacks == source.setbacks else None


def _before(looked: Sequence[Looked], until_ms: int) -> int:
    """How many spans can be placed."""
    return sum(bisect_right(arrivals_ms(found.routed.spans), until_ms) for found in looked)


def _look_further(
    sources: Sequence[QueueSource],
    look: Look,
    want: int,
    looked: list[Looked],
    least: list[tuple[int, int]],
) -> None:
    """Look at more of the log that holds the others back."""
    _, at = least[0]
    source, found = sources[at], looked[at]
    more = look(replace(source, position=found.routed.stop), want)
    looked[at] = _joined(found, more)
    if looked[at].routed.stop >= source.end:
        heapq.heappop(least)
    else:
        heapq.heapreplace(least, (looked[at].until_ms, at))


def _joined(one: Looked, other: Looked) -> Looked:
    marks = None
    if one.routed.marks is not None and other.routed.marks is not None:
        marks = one.routed.marks + other.routed.marks
    routed = replace(
        one.routed,
        stop=max(one.routed.stop, other.routed.stop),
        spans=one.routed.spans + other.routed.spans,
        marks=marks,
        unknown=one.routed.unknown + other.routed.unknown,
        skipped=one.routed.skipped + other.routed.skipped,
    )
    return Looked(routed, max(one.until_ms, other.until_ms))


def arrivals_ms(spans: Iterable[Span]) -> list[int]:
    """When each span came: never before the one ahead of it, whatever the wall clock said."""
    return list(accumulate((span.at_ms for span in spans), max))


def _cut(routed: Routed, until_ms: int) -> tuple[Routed, Routed | None]:
    """What came up to a time, and the rest."""
    kept = bisect_right(arrivals_ms(routed.spans), until_ms)
    if kept == len(routed.spans):
        return routed, None
    count = sum(span.count for span in routed.spans[:kept])
    marks = routed.marks
    at = routed.spans[kept].offset
    share = (at - routed.start) / (routed.stop - routed.start)
    unknown = round(routed.unknown * share)
    before = replace(
        routed,
        stop=at,
        spans=routed.spans[:kept],
        marks=None if marks is None else marks[:count],
        unknown=unknown,
        skipped=[one for one in routed.skipped if one[0] < at],
    )
    rest = replace(
        routed,
        start=at,
        spans=routed.spans[kept:],
        marks=None if marks is None else marks[count:],
        unknown=routed.unknown - unknown,
        skipped=[one for one in routed.skipped if one[0] >= at],
    )
    return before, rest
