"""Sources: the logs that a queue takes from, and which of them hold something it has not looked at.

Names are looked up whenever they are needed. What patterns match is remembered, per process, and kept
up to date by every commit: a log that is new, or that grew, is noted for the queues that take from it. So
a claim looks at what changed since the one before, however many logs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial

from msgspec import Struct

from millstream.format import keys
from millstream.log.model.head import Head, Name, without
from millstream.log.rules.ancestry import FORK_NAME
from millstream.queue.model.spec import QueueSpec
from millstream.queue.model.state import QueueState
from millstream.store.state.state import State
from millstream.store.state.view import View
from millstream.store.store import Store

INBOX = "queue:"
LATER = "queue-later:"
LATER_ID = 2**52
"""Ids of messages that were put for later begin here: that of the first, and then their offsets."""

OWN = "millstream:"
"""Logs that Millstream keeps its own books in."""

NAMES_PER_STEP = 2_000
LOOKED_AT_PER_STEP = 2_000
"""Names and logs that are looked at before the mutex is let go for a moment."""

SOURCES_PER_LOOK = 256
"""Logs with something new that are looked at in one go, for a queue that takes turns."""

_FOLLOWER = "logs by pattern"


class QueueSource(Struct, frozen=True):
    """A log that a queue takes from, and where routing stands in it."""

    log_id: int
    name: str
    position: int
    end: int
    setbacks: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    """Offsets in between that never held a record."""

    @property
    def behind(self) -> int:
        """How many records of the log are not routed."""
        if not self.gaps:
            return self.end - self.position
        return sum(stop - start for start, stop in without(self.gaps, self.position, self.end))


class Facts(Struct, frozen=True):
    """What routing needs to know of a queue."""

    name: str
    spec: QueueSpec
    paused: bool
    untouched: int
    sources: list[QueueSource]
    """Logs with records that are not routed. Of a queue that takes messages in their turn, some."""
    own: tuple[str, str]
    """The logs of messages that were put straight to it; no filter applies to them."""
    partial: bool = False
    """Whether more logs are to be looked at before it is known which these are: ask again."""

    @property
    def is_plain(self) -> bool:
        """Whether what waits in its turn can be claimed now."""
        return not (self.paused or self.spec.indexed)


# Names.


def inbox_of(queue: str) -> str:
    """The log that messages put straight to a queue are appended to."""
    return f"{INBOX}{queue}"


def later_of(queue: str) -> str:
    """The log of messages put to a queue for later: they are placed by the commit that puts them."""
    return f"{LATER}{queue}"


def own_logs(queue: str) -> tuple[str, str]:
    """The logs of what is put straight to a queue, at once and for later."""
    return inbox_of(queue), later_of(queue)


def named_logs(queue: str, spec: QueueSpec) -> list[str]:
    """The names that a queue takes from, whether there are such logs or not: no patterns."""
    return [*own_logs(queue), *(one for one in spec.sources if _literal(one) == one)]


def takes(queue: str, spec: QueueSpec, log: str) -> bool:
    """Whether a queue takes from a log: its inbox, one of its names, or what a pattern matches."""
    return log in (*own_logs(queue), *spec.sources) or may_match(log, spec)


def may_match(log: str, spec: QueueSpec) -> bool:
    """Whether a pattern takes a log; inboxes, dead letters and nameless forks only by name."""
    if log.startswith((INBOX, LATER, OWN)) or log == spec.dead_letter or FORK_NAME in log:
        return False
    return spec.takes_from(log)


def _literal(source: str) -> str:
    """What every log that a source names or matches begins with."""
    return source.split("*")[0].split("?")[0]


def find_sources(view: View, queue: str, spec: QueueSpec) -> list[int]:
    """The ids of all logs that a queue takes from, found by their names: it looks at each."""
    found: dict[int, None] = {}
    for source in (*own_logs(queue), *spec.sources):
        literal = _literal(source)
        start = keys.log_name(literal)
        pattern = literal != source
        for key in view.find_all(*keys.range_of(start)) if pattern else (start,):
            name = view.entity(key, Name)
            if name.log_id and (not pattern or may_match(key[2:].decode(), spec)):
                found[name.log_id] = None
    return list(found)


# What is new.


def facts_of(view: View, name: str, *, whole: bool = False, anyone: bool = False) -> Facts | None:
    """Where a queue stands; None if there is no such queue.

    With `whole`, every log is told that holds something new, also of a queue that takes messages in
    their turn; with `anyone` also those of an outside router (see `assigning`).
    """
    queue = view.entity(keys.queue(name), QueueState)
    if not queue.exists():
        return None
    spec, own = queue.spec, own_logs(name)
    found: dict[int, QueueSource] = {}
    routes = anyone or not spec.router
    for log in named_logs(name, spec) if routes else own:
        entry = view.entity(keys.log_name(log), Name)
        if entry.log_id:
            source = _source(view, queue, entry.log_id)
            if source.position < source.end:
                found[entry.log_id] = source
    unfinished = False
    if routes and has_patterns(spec):
        most = None if whole or spec.in_order else SOURCES_PER_LOOK
        more, unfinished = _matches(view.state).of(queue).news(view, queue, most)
        for source in more:
            found.setdefault(source.log_id, source)
    sources = list(found.values())
    return Facts(name, spec, queue.paused, queue.counts.fresh, sources, own, unfinished)


def find_facts(store: Store, name: str, *, whole: bool = False) -> Facts | None:
    """As `facts_of`, looking at many logs in steps between which others have their turn."""
    while True:
        facts = store.view(partial(facts_of, name=name, whole=whole))
        if facts is None or not facts.partial:
            return facts


def has_patterns(spec: QueueSpec) -> bool:
    """Whether a queue takes from logs that it does not name."""
    return any(_literal(one) != one for one in spec.sources)


def _source(view: View, queue: QueueState, log_id: int) -> QueueSource:
    head = view.entity(keys.head(log_id), Head)
    position = queue.positions.get(log_id, 0)
    gaps = tuple(gap for gap in head.gaps if gap[1] > position) if head.gaps else ()
    return QueueSource(log_id, head.name, head.next_at(position), head.end, head.setbacks, gaps)


class _Matched:
    """The logs that the patterns of one queue match, and those of them that may hold something new."""

    def __init__(self, queue: QueueState, takers: dict[bytes, list[_Matched]]) -> None:
        self.key = keys.queue(queue.name)
        self.queue_id, self.spec = queue.queue_id, queue.spec
        self._takers = takers
        self._logs: dict[str, int] = {}
        """Names → ids of the logs that are known so far."""
        self._news: dict[int, tuple[int, QueueSource] | None] = {}
        """Logs that may hold something new → the position and the source when that was looked at."""
        starts = [
            keys.log_name(_literal(one)) for one in queue.spec.sources if _literal(one) != one
        ]
        self._ranges = [(start, keys.after(start)) for start in sorted(set(starts), reverse=True)]
        """Names that were never looked at."""

    def note_name(self, log: str, log_id: int) -> bool:
        """A name stands for another log by now, or for none; whether that is news to the queue."""
        if not may_match(log, self.spec):
            return False
        known = self._logs.pop(log, 0)
        if known and known != log_id:
            self.forget(known)
        if log_id:
            self._logs[log] = log_id
            if known != log_id:
                self._takers.setdefault(keys.head(log_id), []).append(self)
            self._news[log_id] = None
        return True

    def note_log(self, log_id: int) -> None:
        """A log has changed."""
        self._news[log_id] = None

    def forget(self, log_id: int) -> None:
        """A log is not the queue's any more."""
        self._news.pop(log_id, None)
        takers = self._takers.get(keys.head(log_id), [])
        if self in takers:
            takers.remove(self)
            if not takers:
                del self._takers[keys.head(log_id)]

    def close(self) -> None:
        """Follow no log any more."""
        for log_id in self._logs.values():
            self.forget(log_id)

    def news(
        self, view: View, queue: QueueState, most: int | None
    ) -> tuple[list[QueueSource], bool]:
        """Up to so many logs with something new; and whether more are to be looked at first."""
        if self._ranges:
            self._look_for_names(view)
            if self._ranges:
                return [], True
        found: list[QueueSource] = []
        over: list[int] = []
        looked_at = 0
        for log_id, known in self._news.items():
            position = queue.positions.get(log_id, 0)
            if known is None or known[0] != position:
                if looked_at == LOOKED_AT_PER_STEP:
                    break
                looked_at += 1
                known = position, _source(view, queue, log_id)
                self._news[log_id] = known
            source = known[1]
            if source.position >= source.end:
                over.append(log_id)
            else:
                found.append(source)
                if len(found) == most:
                    break
        for log_id in over:
            del self._news[log_id]
        if looked_at == LOOKED_AT_PER_STEP and (most is None or len(found) < most):
            return [], True
        return found, False

    def _look_for_names(self, view: View) -> None:
        start, stop = self._ranges[-1]
        page = view.find(start, stop, limit=NAMES_PER_STEP)
        for key in page:
            name = view.entity(key, Name)
            self.note_name(key[2:].decode(), name.log_id)
        if len(page) < NAMES_PER_STEP:
            self._ranges.pop()
        else:
            self._ranges[-1] = (page[-1] + b"\x00", stop)


class Matches:
    """What the patterns of all queues match that were asked for; updated by every commit."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues: dict[bytes, _Matched] = {}
        self._takers: dict[bytes, list[_Matched]] = {}

    def of(self, queue: QueueState) -> _Matched:
        """The logs that the patterns of a queue match."""
        key = keys.queue(queue.name)
        found = self._queues.get(key)
        if found is not None:
            if found.queue_id == queue.queue_id and found.spec == queue.spec:
                return found
            found.close()
        found = self._queues[key] = _Matched(queue, self._takers)
        return found

    def changed(self, changed: Set[bytes]) -> Iterable[bytes]:
        """Note what a commit has changed; answers the queues for which that is news."""
        affected: set[bytes] = set()
        for key in changed:
            if key[1] == keys.HEAD:
                for matched in self._takers.get(key, ()):
                    matched.note_log(keys.number(key))
                    affected.add(matched.key)
            elif key[1] == keys.NAME:
                name = self._state.entities.get(key)
                log_id = name.log_id if isinstance(name, Name) else 0
                for matched in self._queues.values():
                    if matched.note_name(key[2:].decode(), log_id):
                        affected.add(matched.key)
            elif key[1] == keys.QUEUE and key in self._queues:
                self._drop_if_gone(key)
        return affected

    def _drop_if_gone(self, key: bytes) -> None:
        queue = self._state.entities.get(key)
        if isinstance(queue, QueueState) and not queue.exists():
            self._queues.pop(key).close()


def _matches(state: State) -> Matches:
    found = state.followers.get(_FOLLOWER)
    if found is None:
        found = state.followers[_FOLLOWER] = Matches(state)
    assert isinstance(found, Matches)
    return found
