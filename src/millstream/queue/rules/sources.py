"""Sources: the logs that a queue takes from, and the logs among them with unrouted records.

Names are looked up on every use. Matches of patterns are cached per process, and every commit
updates the cache: a new or grown log is noted for the queues that take from it. So a claim reads
only the logs that changed since the previous claim, however many logs exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial

from msgspec import Struct

from millstream.format import keys
from millstream.log.model.head import Head, Name, without
from millstream.log.rules.ancestry import FORK_NAME
from millstream.queue.model.own_logs import INBOX, LATER, own_logs
from millstream.queue.model.spec import QueueSpec
from millstream.queue.model.state import QueueState
from millstream.store.state.state import State
from millstream.store.state.view import View
from millstream.store.store import Store

OWN = "millstream:"
"""The prefix of the logs of Millstream itself."""

NAMES_PER_STEP = 2_000
LOOKED_AT_PER_STEP = 2_000
"""The most names and logs that are read before the mutex is released for a moment."""

SOURCES_PER_LOOK = 256
"""The most logs with unrouted records that a look returns, for a queue that claims in number order.
"""


class QueueSource(Struct, frozen=True):
    """A log that a queue takes from, and the routing position in it."""

    log_id: int
    name: str
    position: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that never held a record."""

    @property
    def behind(self) -> int:
        """The number of unrouted records of the log."""
        if not self.gaps:
            return self.end - self.position
        return sum(stop - start for start, stop in without(self.gaps, self.position, self.end))


class Facts(Struct, frozen=True):
    """The facts about a queue that routing needs."""

    name: str
    spec: QueueSpec
    paused: bool
    fresh: int
    sources: list[QueueSource]
    """Logs with unrouted records; incomplete for a queue that claims in number order."""
    put_logs: tuple[str, str]
    """The logs of messages put straight into the queue; no filter applies to these logs."""
    partial: bool = False
    """Whether further logs must be read before `sources` is complete: the caller must ask again."""

    @property
    def can_claim_lane(self) -> bool:
        """Whether messages of lane 0 can be claimed now."""
        return not (self.paused or self.spec.indexed)


def named_logs(queue: str, spec: QueueSpec) -> list[str]:
    """Return the names of logs that a queue takes from, existing or not, without patterns."""
    return [*own_logs(queue), *(source for source in spec.sources if _literal(source) == source)]


def takes(queue: str, spec: QueueSpec, log: str) -> bool:
    """Return whether a queue takes from a log: its inbox, a named source, or a match of a pattern."""
    return log in (*own_logs(queue), *spec.sources) or may_match(log, spec)


def may_match(log: str, spec: QueueSpec) -> bool:
    """Return whether a pattern matches a log; inboxes, dead letters, changes and unnamed forks need a
    name.
    """
    if (
        log.startswith((INBOX, LATER, OWN))
        or log in (spec.dead_letter, spec.changes)
        or FORK_NAME in log
    ):
        return False
    return spec.takes_from(log)


def _literal(source: str) -> str:
    """Return the common prefix of all logs that a source matches."""
    return source.split("*")[0].split("?")[0]


def find_sources(view: View, queue: str, spec: QueueSpec) -> list[int]:
    """Return the ids of all logs that a queue takes from, by reading every name."""
    log_ids: dict[int, None] = {}
    for source in (*own_logs(queue), *spec.sources):
        literal = _literal(source)
        start = keys.log_name(literal)
        pattern = literal != source
        for key in view.find_all(*keys.range_of(start)) if pattern else (start,):
            name = view.entity(key, Name)
            if name.log_id and (not pattern or may_match(keys.leading_name(key), spec)):
                log_ids[name.log_id] = None
    return list(log_ids)


def facts_of(
    view: View, name: str, *, all_logs: bool = False, any_router: bool = False
) -> Facts | None:
    """Return the facts about a queue; None for a missing queue.

    With `all_logs`, `sources` has every log with unrouted records. With `any_router`, it also has the logs
    of an outside router (see `assignment`).
    """
    queue = view.entity(keys.queue(name), QueueState)
    if not queue.exists():
        return None
    spec, put_logs = queue.spec, own_logs(name)
    sources_by_log: dict[int, QueueSource] = {}
    routes = any_router or not spec.router
    for log in named_logs(name, spec) if routes else put_logs:
        entry = view.entity(keys.log_name(log), Name)
        if entry.log_id:
            source = source_of(view, queue, entry.log_id)
            if source.position < source.end:
                sources_by_log[entry.log_id] = source
    unfinished = False
    if routes and has_patterns(spec):
        count_max = None if all_logs or spec.in_order else SOURCES_PER_LOOK
        matched, unfinished = view.state.follower(Matches).of(queue).news(view, queue, count_max)
        for source in matched:
            sources_by_log.setdefault(source.log_id, source)
    all_sources = list(sources_by_log.values())
    return Facts(
        name=name,
        spec=spec,
        paused=queue.paused,
        fresh=queue.counts.fresh,
        sources=all_sources,
        put_logs=put_logs,
        partial=unfinished,
    )


def find_facts(store: Store, name: str, *, all_logs: bool = False) -> Facts | None:
    """Return `facts_of`, reading many logs in steps and releasing the mutex in between."""
    while True:
        facts = store.view(partial(facts_of, name=name, all_logs=all_logs))
        if facts is None or not facts.partial:
            return facts


def has_patterns(spec: QueueSpec) -> bool:
    """Return whether any source of a queue is a pattern."""
    return any(_literal(source) != source for source in spec.sources)


def source_of(view: View, queue: QueueState, log_id: int) -> QueueSource:
    """Return a log as a source of a queue: how far it is routed, its end, and its gaps."""
    head = view.entity(keys.head(log_id), Head)
    position = queue.positions.get(log_id, 0)
    gaps = tuple(gap for gap in head.gaps if gap[1] > position) if head.gaps else ()
    return QueueSource(log_id, head.name, head.next_at(position), head.end, gaps)


class _Matched:
    """The logs that a queue's patterns match, and the logs among them with possibly unrouted
    records.
    """

    def __init__(self, queue: QueueState, takers: dict[bytes, list[_Matched]]) -> None:
        self.key = keys.queue(queue.name)
        self.queue_id, self.spec = queue.queue_id, queue.spec
        self._takers = takers
        self._logs: dict[str, int] = {}
        """Names → ids of the logs known so far."""
        self._news: dict[int, tuple[int, QueueSource] | None] = {}
        """Logs with possibly unrouted records → the position and source of the last look."""
        starts = [
            keys.log_name(_literal(source))
            for source in queue.spec.sources
            if _literal(source) != source
        ]
        self._ranges = [(start, keys.after(start)) for start in sorted(set(starts), reverse=True)]
        """Ranges of names that were never read."""

    def note_name(self, log: str, log_id: int) -> bool:
        """Note that a name stands for another log, or for no log; return whether the queue is
        affected.
        """
        if not may_match(log, self.spec):
            return False
        known_id = self._logs.pop(log, 0)
        if known_id and known_id != log_id:
            self.forget(known_id)
        if log_id:
            self._logs[log] = log_id
            if known_id != log_id:
                self._takers.setdefault(keys.head(log_id), []).append(self)
            self._news[log_id] = None
        return True

    def note_log(self, log_id: int) -> None:
        """Note that a log has changed."""
        self._news[log_id] = None

    def forget(self, log_id: int) -> None:
        """Note that a log is no longer a source of the queue."""
        self._news.pop(log_id, None)
        takers = self._takers.get(keys.head(log_id), [])
        if self in takers:
            takers.remove(self)
            if not takers:
                del self._takers[keys.head(log_id)]

    def close(self) -> None:
        """Stop following all logs."""
        for log_id in self._logs.values():
            self.forget(log_id)

    def news(
        self, view: View, queue: QueueState, count_max: int | None
    ) -> tuple[list[QueueSource], bool]:
        """Return up to `count_max` logs with unrouted records, and whether further logs must be
        read.
        """
        if self._ranges:
            self._look_for_names(view)
            if self._ranges:
                return [], True
        sources: list[QueueSource] = []
        over: list[int] = []
        looked_at = 0
        for log_id, cached in self._news.items():
            position = queue.positions.get(log_id, 0)
            if cached is None or cached[0] != position:
                if looked_at == LOOKED_AT_PER_STEP:
                    break
                looked_at += 1
                cached = position, source_of(view, queue, log_id)
                self._news[log_id] = cached
            source = cached[1]
            if source.position >= source.end:
                over.append(log_id)
            else:
                sources.append(source)
                if len(sources) == count_max:
                    break
        for log_id in over:
            del self._news[log_id]
        if looked_at == LOOKED_AT_PER_STEP and (count_max is None or len(sources) < count_max):
            return [], True
        return sources, False

    def _look_for_names(self, view: View) -> None:
        start, stop = self._ranges[-1]
        page = view.find(start, stop, limit=NAMES_PER_STEP)
        for key in page:
            name = view.entity(key, Name)
            self.note_name(keys.leading_name(key), name.log_id)
        if len(page) < NAMES_PER_STEP:
            self._ranges.pop()
        else:
            self._ranges[-1] = (keys.successor(page[-1]), stop)


class Matches:
    """The pattern matches of all queues in use; updated by every commit."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues: dict[bytes, _Matched] = {}
        self._takers: dict[bytes, list[_Matched]] = {}

    def of(self, queue: QueueState) -> _Matched:
        """Return the logs that the patterns of a queue match."""
        key = keys.queue(queue.name)
        matched = self._queues.get(key)
        if matched is not None:
            if matched.queue_id == queue.queue_id and matched.spec == queue.spec:
                return matched
            matched.close()
        matched = self._queues[key] = _Matched(queue, self._takers)
        return matched

    def changed(self, changed: Set[bytes]) -> Iterable[bytes]:
        """Note the changes of a commit; return the keys of affected queues."""
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
                    if matched.note_name(keys.leading_name(key), log_id):
                        affected.add(matched.key)
            elif key[1] == keys.QUEUE and key in self._queues:
                self._drop_if_gone(key)
        return affected

    def _drop_if_gone(self, key: bytes) -> None:
        queue = self._state.entities.get(key)
        if isinstance(queue, QueueState) and not queue.exists():
            self._queues.pop(key).close()
