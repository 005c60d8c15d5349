"""Assigning: a router outside the store says which stored messages belong to which queues.

A queue whose spec names a `router` is left alone by the built-in routing. Its router hands in
stretches of a log with the offsets in them that match. Each is taken over from where the queue stands
in that log. So what was assigned before is passed over, however often and by whichever router it is
handed in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from millstream.command import Procedure, Traits, on_log, on_queue
from millstream.errors import Conflict, InvalidInput, OutOfRange
from millstream.format import keys
from millstream.format.entries import Entry, Places, decode_places
from millstream.header import Scalar
from millstream.log.model.head import Head, Name, without
from millstream.log.model.names import check_integer
from millstream.log.reading.reader import RowMoved, bounds_of, entries_of, log_id_of
from millstream.queue.commands import Routed
from millstream.queue.model.marking import Wishes, check_wishes, mark_of
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import DELAY_MS_MAX, QueueSpec
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import need_queue
from millstream.queue.rules.placing import place
from millstream.queue.rules.sources import may_match
from millstream.queue.service.decoding import decoded_entry
from millstream.queue.service.routing import joined_spans
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

TRIES = 8
"""How often a log is read that is truncated or folded meanwhile."""

ASSIGNED_MAX = 50_000
"""Messages in one command: they are placed in one commit."""


class Wish(Struct, frozen=True, array_like=True):
    """How one message is to be treated, where that is not what its headers say."""

    priority: int | None = None
    group: str | None = None
    delay_ms: int | None = None


class Assignment(Struct, frozen=True, array_like=True):
    """Of the offsets [start, stop) of a log, those that belong to a queue; the others do not."""

    queue: str
    log: str
    start: int
    stop: int
    runs: list[tuple[int, int]]
    """(first offset, count), in order, apart from each other."""
    wishes: list[Wish] | None = None
    """One per message."""
    gapless: bool = False
    """Refuse if the queue has not come as far as `start`: something would be passed over."""


class AssignMessages(Procedure[int], frozen=True):
    """Assign stored messages to queues, in one commit; answers how many were new.

    It changes the store, and may be repeated: nothing is assigned twice.
    """

    traits = Traits(
        needs=(on_queue("write", "assignments.queue"), on_log("read", "assignments.log")),
        repeat="harmless",
    )

    assignments: list[Assignment]


_Found = tuple[Assignment, Routed]
"""An assignment, and what the log says about its messages."""


def assign_messages(store: Store, query: AssignMessages) -> int:
    """Look the messages up outside the write lock, then place them all."""
    total = sum(count for one in query.assignments for _, count in one.runs)
    if total > ASSIGNED_MAX:
        raise InvalidInput(
            f"{total:,} messages are assigned at once; the limit is {ASSIGNED_MAX:,}"
        )
    read: dict[tuple[int, int, bool], _Entries] = defaultdict(_Entries)
    found = [_look_up(store, one, read) for one in query.assignments]
    return store.run(partial(_place, found=found))


class _ReadEntry:
    """An entry that was read, and its headers if they are needed."""

    __slots__ = ("entry", "first", "headers", "same_ms", "stop")

    def __init__(self, first: int, entry: Places, headers: list[dict[str, Scalar]]) -> None:
        self.first = first
        self.stop = first + len(entry)
        self.entry = entry
        self.headers = headers
        appended = entry.appended
        is_plain = isinstance(entry.ids, range) and appended.count(appended[0]) == len(appended)
        self.same_ms = appended[0] if is_plain else None
        """When all of its records were appended, if their ids are neighbours too."""


class _Entries:
    """Entries of a log that one command has read: its queues take from the same ones."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._found: list[_ReadEntry] = []

    def at(self, offset: int) -> _ReadEntry | None:
        """The entry that covers an offset, if it was read."""
        index = bisect_right(self._firsts, offset) - 1
        return None if index < 0 or offset >= self._found[index].stop else self._found[index]

    def add(self, one: _ReadEntry) -> None:
        """Keep one that was read."""
        index = bisect_right(self._firsts, one.first)
        self._firsts.insert(index, one.first)
        self._found.insert(index, one)


def _look_up(
    store: Store, assignment: Assignment, read: dict[tuple[int, int, bool], _Entries]
) -> _Found:
    spec = store.view(partial(need_queue, name=assignment.queue)).spec
    _check(assignment, spec)
    log_id = log_id_of(store, assignment.log)
    bounds = bounds_of(store, log_id)
    if not log_id or assignment.stop > bounds.end:
        raise OutOfRange(
            f"log {assignment.log!r} ends at {bounds.end}: there is no offset "
            f"{assignment.stop - 1} to assign",
            position=assignment.stop - 1,
            end=bounds.end,
        )
    for _ in range(TRIES):
        gone = store.view(partial(_gone, log_id=log_id))
        looks = spec.looks_at_headers or assignment.wishes is not None
        # What is read after a setback is not mixed with what was read before it.
        known = read[log_id, bounds.setbacks, looks]
        try:
            with store.engine.read() as snapshot:
                source = _Source(store.rows(snapshot), log_id, gone, looks, known)
                spans, marks = _spans(source, assignment, spec)
                stretch = assignment.start, assignment.stop
                routed = Routed(log_id, *stretch, spans, marks, setbacks=bounds.setbacks)
                return assignment, routed
        except RowMoved:
            store.refresh()
            bounds = bounds_of(store, log_id)
    raise Conflict(f"log {assignment.log!r} was truncated meanwhile; assign again")


def _gone(view: View, log_id: int) -> list[tuple[int, int]]:
    """The offsets of a log at which there is nothing: what was dropped, and its gaps."""
    head = view.entity(keys.head(log_id), Head)
    return [(0, head.dropped), *head.gaps]


def _check(one: Assignment, spec: QueueSpec) -> None:
    if not spec.router:
        raise InvalidInput(
            f"queue {one.queue!r} routes its messages itself; specify it with router='spark' to "
            "have them assigned"
        )
    if one.log not in spec.sources and not may_match(one.log, spec):
        raise InvalidInput(
            f"queue {one.queue!r} does not take from log {one.log!r}: name it in its sources"
        )
    last = check_integer("an offset", one.start)
    check_integer("an offset", one.stop)
    for at, count in one.runs:
        if count < 1 or at < last or at + count > one.stop:
            raise InvalidInput(
                f"runs are in order, apart, and between {one.start} and {one.stop}, "
                f"not {count} from {at} on"
            )
        last = at + count
    _check_wishes(one, spec)


def _check_wishes(one: Assignment, spec: QueueSpec) -> None:
    if one.wishes is None:
        return
    messages = sum(count for _, count in one.runs)
    if len(one.wishes) != messages:
        raise InvalidInput(
            f"there is one wish per message, or none at all: {messages} messages, not "
            f"{len(one.wishes)}"
        )
    for wish in one.wishes:
        for what in ("priority", "group"):
            if getattr(wish, what) is not None and not getattr(spec, f"{what}_by"):
                raise InvalidInput(
                    f"queue {one.queue!r} does not look at a {what}: specify it with {what}_by"
                )
        check_wishes(Wishes(wish.priority, wish.group))
        if wish.delay_ms is not None and not 0 <= wish.delay_ms <= DELAY_MS_MAX:
            raise InvalidInput(f"a delay is from 0 to {DELAY_MS_MAX:,} ms, not {wish.delay_ms:,}")


class _Source(NamedTuple):
    """Where the entries of a log come from."""

    rows: Rows
    log_id: int
    gone: list[tuple[int, int]]
    looks: bool
    """Whether headers are needed."""
    known: _Entries

    def entry(self, offset: int) -> _ReadEntry:
        """The entry that covers an offset."""
        if (found := self.known.at(offset)) is not None:
            return found
        ((first, value),) = entries_of(self.rows, self.log_id, start=offset, stop=offset + 1)
        entry, headers = decoded_entry(value) if self.looks else (decode_places(value), [])
        found = _ReadEntry(first, entry, headers)
        self.known.add(found)
        return found


def _spans(
    source: _Source, one: Assignment, spec: QueueSpec
) -> tuple[list[Span], list[RoutingMark] | None]:
    """Where the messages lie, and their marks if the queue looks at more than whether they match."""
    runs, wishes = _left(one, source.gone)
    if not source.looks:
        return _plain_spans(source, runs), None
    spans: list[Span] = []
    marks: list[RoutingMark] = []
    for read, taken in _taken(source, runs):
        entry, headers = read.entry, read.headers
        assert isinstance(entry, Entry)
        spans += joined_spans(source.log_id, read.first, entry, taken)
        marks += [mark_of(spec, entry.keys[i], headers[i]) for i in taken]
    if wishes is not None:
        marks = [_wished(mark, wish) for mark, wish in zip(marks, wishes, strict=True)]
    return spans, marks


def _plain_spans(source: _Source, runs: Sequence[tuple[int, int]]) -> list[Span]:
    """Where messages lie: one span for each run, unless it goes over the edge of an entry."""
    spans: list[Span] = []
    log_id = source.log_id
    first = stop = by = 0
    same_ms: int | None = None
    for start, count in runs:
        while count:
            if not first <= start < stop:
                read = source.entry(start)
                first, stop, same_ms = read.first, read.stop, read.same_ms
                by = read.entry.ids[0] - first
            some = min(count, stop - start)
            if same_ms is not None:
                spans.append(Span(0, some, log_id, start, start + by, same_ms))
            else:
                taken = range(start - first, start - first + some)
                spans += joined_spans(log_id, first, read.entry, taken)
            start, count = start + some, count - some
    return spans


def _left(
    one: Assignment, gone: Sequence[tuple[int, int]]
) -> tuple[Sequence[tuple[int, int]], Sequence[Wish] | None]:
    """The runs and wishes of what a log has: what is gone, or never was, cannot be assigned."""
    if not one.runs or one.runs[0][0] >= max(stop for _, stop in gone):
        return one.runs, one.wishes
    runs: list[tuple[int, int]] = []
    wishes: list[Wish] | None = None if one.wishes is None else []
    passed = 0
    for start, count in one.runs:
        for low, high in without(gone, start, start + count):
            runs.append((low, high - low))
            if wishes is not None and one.wishes is not None:
                wishes += one.wishes[passed + low - start : passed + high - start]
        passed += count
    return runs, wishes


def _taken(
    source: _Source, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[_ReadEntry, list[int]]]:
    """Each entry that runs lie in, read once, and which of its records they take."""
    left = iter(runs)
    start, count = next(left, (0, 0))
    while count:
        read = source.entry(start)
        first, end = read.first, read.stop
        taken: list[int] = []
        while count and start < end:
            stop = start + count
            if count == 1:
                taken.append(start - first)
            else:
                taken += range(start - first, min(stop, end) - first)
            start, count = (end, stop - end) if stop > end else next(left, (0, 0))
        yield read, taken


def _wished(mark: RoutingMark, wish: Wish) -> RoutingMark:
    said = {name: value for name, value in asdict(wish).items() if value is not None}
    return replace(mark, **said) if said else mark


def _place(tx: WriteTransaction, found: Sequence[_Found]) -> int:
    """Compare where each queue stands, set where it stands then, and place what is new."""
    total = 0
    for assignment, routed in found:
        ledger = Ledger(tx, assignment.queue)
        named = tx.entity(keys.log_name(assignment.log), Name).log_id
        head = tx.entity(keys.head(routed.log_id), Head)
        if named != routed.log_id or head.setbacks != routed.setbacks:
            raise Conflict(f"log {assignment.log!r} is another one by now; assign again")
        position = head.next_at(ledger.queue.positions.get(routed.log_id, 0))
        if assignment.gapless and head.count(position, assignment.start):
            raise Conflict(
                f"queue {assignment.queue!r} stands at offset {position} of log "
                f"{assignment.log!r}, and what is assigned begins at {assignment.start}: the "
                "records between would be passed over; begin there",
                position=position,
                start=assignment.start,
            )
        if position >= assignment.stop:
            continue
        total += place(ledger, [_from(routed, position)])
        ledger.close()
    return total


def _from(routed: Routed, position: int) -> Routed:
    """The messages at and after a position."""
    if not routed.spans or routed.spans[0].offset >= position:
        return replace(routed, start=position)
    spans: list[Span] = []
    passed = 0
    for span in routed.spans:
        skip = min(max(0, position - span.offset), span.count)
        passed += skip
        if skip < span.count:
            spans.append(span.cut(skip, span.count - skip))
    marks = None if routed.marks is None else routed.marks[passed:]
    return replace(routed, start=position, spans=spans, marks=marks)
