"""Routing: which records of the logs belong to a queue.

Logs are looked at outside the write lock, a bounded stretch at a time. What was found is handed to
a claim, which takes it over only if nobody else has routed that stretch meanwhile: a message is
assigned exactly once. A plain queue is routed a window ahead; what waits stays in the log. One that
chooses by priority or group is routed to the end, for the best message may be the last.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.ancestry import FORK_NAME
from millstream.log.damage import next_entry
from millstream.log.head import Head, Name
from millstream.log.reader import TRIES, RowMoved, entries_of
from millstream.queue.commands import Routed
from millstream.queue.slots import Mark, Span
from millstream.queue.spec import KEY, PRIORITY_MAX, QueueSpec
from millstream.queue.state import QueueState
from millstream.record import NO_HEADERS, Headers
from millstream.store.engine import Snapshot
from millstream.store.overlay import Overlay
from millstream.store.state import State
from millstream.store.store import Store

if TYPE_CHECKING:
    from millstream.filters import Filter

WINDOW = 4_000
"""Messages that a plain queue is routed ahead of its consumers."""

SCAN_RECORDS = 20_000
"""Records looked at before what was found is committed, so that progress is kept."""

INBOX = "queue:"
LATER = "queue-later:"
OWN = "millstream:"
"""Logs that Millstream keeps its own books in."""

UNKNOWN_LOOKED_AT = 32
"""Of the records of an entry that do not match, so many are asked whether that is certain."""

PLACE_RECORDS = 2_000
"""Messages that one commit enters into an index."""

LOGS_PER_QUEUE = 1_000

NAME_CHARS_MAX = 200
"""A longer name of a group is known by its digest."""

_decode_headers = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | None]).decode


class Source(Struct, frozen=True):
    """A log that a queue takes from, and where routing stands in it."""

    log_id: int
    name: str
    position: int
    end: int
    setbacks: int = 0


class Facts(Struct, frozen=True):
    """What routing needs to know of a queue."""

    name: str
    spec: QueueSpec
    paused: bool
    untouched: int
    sources: list[Source]
    own: tuple[str, str]
    """The logs of messages that were put straight to it; no filter applies to them."""

    @property
    def is_plain(self) -> bool:
        """Whether what waits in its turn can be claimed now."""
        return not (self.paused or self.spec.indexed)


def facts_of(state: State, snapshot: Snapshot, name: str) -> Facts | None:
    """Where a queue stands; None if there is no such queue."""
    queue = state.entity(keys.queue(name), snapshot)
    assert isinstance(queue, QueueState)
    if not queue.exists():
        return None
    sources = []
    for log_id in find_sources(state, snapshot, name, queue.spec):
        head = state.entity(keys.head(log_id), snapshot)
        assert isinstance(head, Head)
        if queue.spec.router and head.name not in own_logs(name):
            continue  # somebody else assigns what it is to have: see `assigning`
        position = max(queue.positions.get(log_id, 0), head.dropped)
        sources.append(Source(log_id, head.name, position, head.end, head.setbacks))
    return Facts(name, queue.spec, queue.paused, queue.counts.fresh, sources, own_logs(name))


def inbox_of(queue: str) -> str:
    """The log that messages put straight to a queue are appended to."""
    return f"{INBOX}{queue}"


def later_of(queue: str) -> str:
    """The log of messages put to a queue for later: they are placed by the commit that puts them."""
    return f"{LATER}{queue}"


def own_logs(queue: str) -> tuple[str, str]:
    """The logs of what is put straight to a queue, at once and for later."""
    return inbox_of(queue), later_of(queue)


def find_sources(state: State, snapshot: Snapshot, queue: str, spec: QueueSpec) -> list[int]:
    """The ids of the logs that a queue takes from: its inbox, names, and what patterns match."""
    found: dict[int, None] = {}
    for source in (*own_logs(queue), *spec.sources):
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
            if name.log_id and (text == source or may_match(text, spec)):
                found[name.log_id] = None
    return list(found)


def may_match(log: str, spec: QueueSpec) -> bool:
    """Whether a pattern takes a log; inboxes, dead letters and nameless forks only by name."""
    if log.startswith((INBOX, LATER, OWN)) or log == spec.dead_letter or FORK_NAME in log:
        return False
    return spec.takes_from(log)


def route(store: Store, facts: Facts, want: int) -> list[Routed]:
    """Look ahead in the logs until enough was found, or enough was looked at."""
    spec = facts.spec
    condition = _condition(spec.filter)
    waiting = [source for source in facts.sources if source.position < source.end]
    if spec.indexed:
        each = max(1, PLACE_RECORDS // max(1, len(waiting)))
        looked = [_look_at(store, facts, source, condition, each) for source in waiting]
        return looked if len(waiting) == 1 else _side_by_side(looked, waiting)
    missing = max(want, WINDOW) - facts.untouched
    if facts.untouched >= want:
        return []
    found = []
    for source in waiting:
        if missing > 0:
            routed = _look_at(store, facts, source, condition, missing)
            missing -= sum(span.count for span in routed.spans)
            found.append(routed)
    return found


def _look_at(
    store: Store, facts: Facts, source: Source, condition: Filter | None, want: int
) -> Routed:
    wanted = None if source.name in facts.own else condition
    return _look(store, source, facts.spec, wanted, want)


def _side_by_side(looked: list[Routed], sources: list[Source]) -> list[Routed]:
    """What was found in several logs, up to the time to which all of them were looked at."""
    ends = [
        arrivals_ms(routed)[-1]
        for routed, source in zip(looked, sources, strict=True)
        if routed.stop < source.end and routed.spans
    ]
    if not ends:
        return looked
    found = [_cut(routed, min(ends)) for routed in looked]
    return [routed for routed in found if routed.stop > routed.start]


def arrivals_ms(routed: Routed) -> list[int]:
    """When each span came: never before the one ahead of it, whatever the wall clock said."""
    return list(accumulate((span.at_ms for span in routed.spans), max))


def _cut(routed: Routed, until_ms: int) -> Routed:
    """Without what came after a time."""
    kept = bisect_right(arrivals_ms(routed), until_ms)
    if kept == len(routed.spans):
        return routed
    spans = routed.spans[:kept]
    count = sum(span.count for span in spans)
    marks = None if routed.marks is None else routed.marks[:count]
    stop = routed.spans[kept].offset
    share = (stop - routed.start) / (routed.stop - routed.start)
    unknown = round(routed.unknown * share)
    return replace(routed, stop=stop, spans=spans, marks=marks, unknown=unknown)


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter | None:
    if not text:
        return None
    from millstream.filters import parse  # only who uses filters pays for their parser

    return parse(text)


def _look(
    store: Store, source: Source, spec: QueueSpec, condition: Filter | None, want: int
) -> Routed:
    for _ in range(TRIES):
        try:
            with store.engine.read() as snapshot:
                return _look_in(store.state.overlay, snapshot, source, spec, condition, want)
        except RowMoved:
            store.refresh()
        except CorruptionError as error:
            return _passed_over(store, source, error)
    return _passed_over(store, source, None)


def _passed_over(store: Store, source: Source, error: CorruptionError | None) -> Routed:
    """The damage that routing stands before: which records belong to the queue, nobody can say."""
    overlay, log_id, start = store.state.overlay, source.log_id, source.position
    with store.engine.read() as snapshot:
        stop = min(source.end, next_entry(overlay, snapshot, log_id, error, start, source.end))
    return Routed(log_id, start, stop, [], setbacks=source.setbacks, damaged=stop - start)


def _look_in(
    overlay: Overlay,
    snapshot: Snapshot,
    source: Source,
    spec: QueueSpec,
    condition: Filter | None,
    want: int,
) -> Routed:
    stop = min(source.end, source.position + (SCAN_RECORDS if condition else want))
    spans: list[Span] = []
    marks: list[Mark] | None = [] if spec.looks_at_headers else None
    position = source.position
    count = unknown = 0
    found = entries_of(overlay, snapshot, source.log_id, start=position, stop=stop)
    try:
        for first, value in found:
            low = position - first
            high = min(stop, first + entries.count(value)) - first
            more, taken = _matching(source, first, value, range(low, high), condition)
            if marks is not None:
                entry, headers = decoded_entry(value)
                marks += [mark_of(spec, entry.keys[i], headers[i]) for i in taken]
            spans += more
            if condition is not None and len(taken) < high - low:
                unknown += _unknown(source, value, range(low, high), taken, condition)
            position = first + high
            count += len(taken)
            if count >= want:
                break
    except (CorruptionError, RowMoved):
        if position == source.position:
            raise  # else what is sound is taken first, and the next look begins at the damage
    start = source.position
    return Routed(source.log_id, start, position, spans, marks, unknown, source.setbacks)


def mark_of(spec: QueueSpec, key: bytes | None, headers: Headers) -> Mark:
    """What a queue wants to know of a message: its priority, its group, how a repeat is known."""
    priority = headers.get(spec.priority_by) if spec.priority_by else 0
    digest = b""
    if spec.dedup_by:
        known = _named(spec.dedup_by, key, headers)
        if known is not None:
            digest = blake2b(known.encode(), digest_size=16).digest()
    return Mark(
        min(max(priority, 0), PRIORITY_MAX) if type(priority) is int else 0,
        (_named(spec.group_by, key, headers) or "") if spec.group_by else "",
        digest=digest,
    )


def _named(by: str, key: bytes | None, headers: Headers) -> str | None:
    """A header, or the key, as text; None if there is none."""
    if by == KEY:
        found: object = None if key is None else key.decode(errors="backslashreplace")
    else:
        found = headers.get(by)
    if found is None:
        return None
    text = str(found)
    return text if len(text) <= NAME_CHARS_MAX else blake2b(text.encode()).hexdigest()


def _matching(
    source: Source, first: int, value: bytes, wanted: range, condition: Filter | None
) -> tuple[list[Span], Sequence[int]]:
    """The records of one entry that a queue takes, as spans, and which they are."""
    if condition is None and blocks.is_block(value):
        header = blocks.decode_header(value, kind=blocks.METADATA)
        if not header.columns & blocks.APPENDED:
            start, at_ms = wanted.start, header.appended_ms
            first_id = header.first_id + start
            whole = Span(0, len(wanted), source.log_id, first + start, first_id, at_ms)
            return [whole], wanted
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
    source: Source, value: bytes, wanted: range, taken: Sequence[int], condition: Filter
) -> int:
    """Of how many records nobody can say whether they match: a header is missing, or is no number.

    It is counted for whoever watches, so of a long entry only some are looked at.
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
