"""Assignment: a router outside the store decides which stored messages belong to which queues.

The built-in routing ignores a queue whose spec names a `router`. The router submits ranges of a log
with the matching offsets. A range is placed from the queue's position in the log on. So messages
that were assigned before are skipped, however often and by whichever router they are submitted.
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
from millstream.queue.model.grants import Routed
from millstream.queue.model.routing_marks import Wishes, check_wishes, marks_of
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import DELAY_MS_MAX, QueueSpec
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import need_queue
from millstream.queue.rules.placement import place
from millstream.queue.rules.sources import may_match
from millstream.queue.service.decoded_entries import decoded_entry
from millstream.queue.service.router import joined_spans
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

TRIES = 8
"""The most attempts to read a log that is truncated or folded meanwhile."""

ASSIGNED_MAX = 50_000
"""The most messages in a command, because a single commit places them."""


class Wish(Struct, frozen=True, array_like=True):
    """The priority, group and delay of a message, if they differ from its headers."""

    priority: int | None = None
    group: str | None = None
    delay_ms: int | None = None


class Assignment(Struct, frozen=True, array_like=True):
    """The offsets of a log's range [start, stop) that belong to a queue."""

    queue: str
    log: str
    start: int
    stop: int
    runs: list[tuple[int, int]]
    """(first offset, count) in ascending order, without overlap."""
    wishes: list[Wish] | None = None
    """The wish of each message, or None."""
    gapless: bool = False
    """Refuse the range if the queue's position is before `start`, because records would be skipped.
    """


class AssignMessages(Procedure[int], frozen=True):
    """Assign stored messages to queues in a single commit; returns the number of new ones.

    The command changes the store and may be repeated: no message is assigned twice.
    """

    traits = Traits(
        needs=(on_queue("write", "assignments.queue"), on_log("read", "assignments.log")),
        repeat="harmless",
    )

    assignments: list[Assignment]


_ReadAssignment = tuple[Assignment, Routed]
"""An assignment, and its messages as read from the log."""


def assign_messages(store: Store, query: AssignMessages) -> int:
    """Read the messages outside the write lock, then place them."""
    total = sum(count for assignment in query.assignments for _, count in assignment.runs)
    if total > ASSIGNED_MAX:
        raise InvalidInput(
            f"{total:,} messages are assigned at once; the limit is {ASSIGNED_MAX:,}"
        )
    read: dict[tuple[int, bool], _Entries] = defaultdict(_Entries)
    read_assignments = [_look_up(store, assignment, read) for assignment in query.assignments]
    return store.run(partial(_place, read_assignments=read_assignments))


class _ReadEntry:
    """A decoded entry, with headers if needed."""

    __slots__ = ("entry", "first", "headers", "same_ms", "stop")

    def __init__(self, first: int, entry: Places, headers: list[dict[str, Scalar]]) -> None:
        self.first = first
        self.stop = first + len(entry)
        self.entry = entry
        self.headers = headers
        appended = entry.appended
        is_uniform = isinstance(entry.ids, range) and appended.count(appended[0]) == len(appended)
        self.same_ms = appended[0] if is_uniform else None
        """The append time of all records, if it is the same and the ids are consecutive."""


class _Entries:
    """The entries of a log that a command has read, shared by its queues."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._entries: list[_ReadEntry] = []

    def at(self, offset: int) -> _ReadEntry | None:
        """Return the entry that covers an offset, if it was read."""
        index = bisect_right(self._firsts, offset) - 1
        return None if index < 0 or offset >= self._entries[index].stop else self._entries[index]

    def add(self, entry: _ReadEntry) -> None:
        """Keep an entry that was read."""
        index = bisect_right(self._firsts, entry.first)
        self._firsts.insert(index, entry.first)
        self._entries.insert(index, entry)


def _look_up(
    store: Store, assignment: Assignment, read: dict[tuple[int, bool], _Entries]
) -> _ReadAssignment:
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
        entries = read[log_id, looks]
        try:
            with store.engine.read() as snapshot:
                source = _Source(store.rows(snapshot), log_id, gone, looks, entries)
                spans, marks = _spans(source, assignment, spec)
                stretch = assignment.start, assignment.stop
                routed = Routed(log_id, *stretch, spans, marks)
                return assignment, routed
        except RowMoved:
            store.refresh()
            bounds = bounds_of(store, log_id)
    raise Conflict(f"log {assignment.log!r} was truncated meanwhile; assign again")


def _gone(view: View, log_id: int) -> list[tuple[int, int]]:
    """Return the offsets of a log without records: dropped offsets and gaps."""
    head = view.entity(keys.head(log_id), Head)
    return [(0, head.dropped), *head.gaps]


def _check(assignment: Assignment, spec: QueueSpec) -> None:
    if not spec.router:
        raise InvalidInput(
            f"queue {assignment.queue!r} routes its messages itself; specify it with router='spark' to "
            "have them assigned"
        )
    if assignment.log not in spec.sources and not may_match(assignment.log, spec):
        raise InvalidInput(
            f"queue {assignment.queue!r} does not take from log {assignment.log!r}: name it in its sources"
        )
    last = check_integer("an offset", assignment.start)
    check_integer("an offset", assignment.stop)
    for offset, count in assignment.runs:
        if count < 1 or offset < last or offset + count > assignment.stop:
            raise InvalidInput(
                f"runs are in order, apart, and between {assignment.start} and {assignment.stop}, "
                f"not {count} from {offset} on"
            )
        last = offset + count
    _check_wishes(assignment, spec)


def _check_wishes(assignment: Assignment, spec: QueueSpec) -> None:
    if assignment.wishes is None:
        return
    messages = sum(count for _, count in assignment.runs)
    if len(assignment.wishes) != messages:
        raise InvalidInput(
            f"there is one wish per message, or none at all: {messages} messages, not "
            f"{len(assignment.wishes)}"
        )
    for wish in assignment.wishes:
        for field in ("priority", "group"):
            if getattr(wish, field) is not None and not getattr(spec, f"{field}_by"):
                raise InvalidInput(
                    f"queue {assignment.queue!r} does not look at a {field}: specify it with {field}_by"
                )
        check_wishes(Wishes(wish.priority, wish.group))
        if wish.delay_ms is not None and not 0 <= wish.delay_ms <= DELAY_MS_MAX:
            raise InvalidInput(f"a delay is from 0 to {DELAY_MS_MAX:,} ms, not {wish.delay_ms:,}")


class _Source(NamedTuple):
    """Reads the entries of a log."""

    rows: Rows
    log_id: int
    gone: list[tuple[int, int]]
    looks: bool
    """Whether headers are needed."""
    entries: _Entries

    def entry(self, offset: int) -> _ReadEntry:
        """Return the entry that covers an offset."""
        if (read_entry := self.entries.at(offset)) is not None:
            return read_entry
        ((first, value),) = entries_of(self.rows, self.log_id, start=offset, stop=offset + 1)
        entry, headers = decoded_entry(value) if self.looks else (decode_places(value), [])
        read_entry = _ReadEntry(first, entry, headers)
        self.entries.add(read_entry)
        return read_entry


def _spans(
    source: _Source, assignment: Assignment, spec: QueueSpec
) -> tuple[list[Span], list[RoutingMark] | None]:
    """Return the spans of messages, and their marks if the queue reads keys or headers."""
    runs, wishes = _existing(assignment, source.gone)
    if not source.looks:
        return _plain_spans(source, runs), None
    spans: list[Span] = []
    marks: list[RoutingMark] = []
    for read, indexes in _indexes_by_entry(source, runs):
        entry, headers = read.entry, read.headers
        assert isinstance(entry, Entry)
        spans += joined_spans(source.log_id, read.first, entry, indexes)
        marks += marks_of(spec, entry.keys, headers, indexes)
    if wishes is not None:
        marks = [_wished(mark, wish) for mark, wish in zip(marks, wishes, strict=True)]
    return spans, marks


def _plain_spans(source: _Source, runs: Sequence[tuple[int, int]]) -> list[Span]:
    """Return a span per run, or several where a run crosses the edge of an entry."""
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
            size = min(count, stop - start)
            if same_ms is not None:
                spans.append(Span(0, size, log_id, start, start + by, same_ms))
            else:
                indexes = range(start - first, start - first + size)
                spans += joined_spans(log_id, first, read.entry, indexes)
            start, count = start + size, count - size
    return spans


def _existing(
    assignment: Assignment, gone: Sequence[tuple[int, int]]
) -> tuple[Sequence[tuple[int, int]], Sequence[Wish] | None]:
    """Return the runs and wishes without records that were deleted or never existed."""
    if not assignment.runs or assignment.runs[0][0] >= max(stop for _, stop in gone):
        return assignment.runs, assignment.wishes
    runs: list[tuple[int, int]] = []
    wishes: list[Wish] | None = None if assignment.wishes is None else []
    passed = 0
    for start, count in assignment.runs:
        for low, high in without(gone, start, start + count):
            runs.append((low, high - low))
            if wishes is not None and assignment.wishes is not None:
                wishes += assignment.wishes[passed + low - start : passed + high - start]
        passed += count
    return runs, wishes


def _indexes_by_entry(
    source: _Source, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[_ReadEntry, list[int]]]:
    """Yield every entry of the runs once, with the indexes of the assigned records."""
    following = iter(runs)
    start, count = next(following, (0, 0))
    while count:
        read = source.entry(start)
        first, end = read.first, read.stop
        indexes: list[int] = []
        while count and start < end:
            stop = start + count
            if count == 1:
                indexes.append(start - first)
            else:
                indexes += range(start - first, min(stop, end) - first)
            start, count = (end, stop - end) if stop > end else next(following, (0, 0))
        yield read, indexes


def _wished(mark: RoutingMark, wish: Wish) -> RoutingMark:
    fields = {name: value for name, value in asdict(wish).items() if value is not None}
    return replace(mark, **fields) if fields else mark


def _place(tx: WriteTransaction, read_assignments: Sequence[_ReadAssignment]) -> int:
    """Check the position of each queue, place its new messages, and advance the position."""
    total = 0
    for assignment, routed in read_assignments:
        ledger = Ledger(tx, assignment.queue)
        named = tx.entity(keys.log_name(assignment.log), Name).log_id
        head = tx.entity(keys.head(routed.log_id), Head)
        if named != routed.log_id:
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
    """Return the messages at and after a position."""
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
