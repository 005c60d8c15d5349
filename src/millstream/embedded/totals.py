"""The tally of a store: totals of published, claimed and done messages, and the backlog.

The tally is made from counts that logs and queues keep anyway. The first look reads all logs and
queues. Afterwards each commit notes its changed entities, and a look reads only these. So the cost
follows the activity, not the size of the store. A closed tally costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from millstream.format import keys
from millstream.log.model.head import Head, Name
from millstream.log.model.names import ROOM
from millstream.log.rules.ancestry import FORK_NAME, fork_of
from millstream.partitioning import partition_of
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import OWN, Facts, facts_of, named_logs
from millstream.queue.service.info import claimable_ms
from millstream.store.state.view import View
from millstream.store.store import Store

LOOKED_AT_PER_STEP = 500
"""The most logs that are read before the mutex is released for a moment."""

_WATCHED = (keys.HEAD, keys.NAME, keys.QUEUE)


class Totals(Struct, frozen=True):
    """The totals of a store. Published, claimed and done count from the first look on."""

    published: int = 0
    """Records appended to logs, including puts to queues and messages of rooms."""
    claimed: int = 0
    """Messages handed out, including repeated deliveries."""
    done: int = 0
    depth: int = 0
    """Unfinished messages of all queues, including unrouted records."""
    claimable_ms: int | None = None
    """The wall time since which the oldest message is claimable; in the future if all messages are
    delayed, None without messages.
    """
    logs: int = 0
    """Logs named by users; a log with partitions counts once."""
    queues: int = 0
    rooms: int = 0


class _CountedLog(NamedTuple):
    name: str
    end: int
    counted: int
    """The number of records appended since the last known end."""
    is_gone: bool


class _CountedQueue(NamedTuple):
    claimed: int
    done: int
    depth: int
    claimable_ms: int | None
    sources: tuple[bytes, ...]
    """The keys of the queue's named logs, whose changes also change its number of messages."""


class Tally:
    """The totals of a store. A single thread looks at a time; commits of all threads are noted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._changed: set[bytes] | None = None
        """Entities changed since the last look; None if every entity may have changed."""
        self._begun = False
        self._logs: dict[bytes, tuple[str, int]] = {}
        self._queues: dict[bytes, _CountedQueue] = {}
        self._takers: dict[bytes, set[bytes]] = {}
        """Names and heads of logs → the queues that name them."""
        self._published = self._claimed = self._done = 0
        self._named = self._rooms = 0
        store.watch.follow(self._note)

    def close(self) -> None:
        """Stop following the store."""
        self._store.watch.unfollow(self._note)

    def look(self) -> Totals:
        """Return the current totals, including commits of other processes."""
        self._store.refresh()
        with self._lock:
            changed, self._changed = self._changed, set()
        try:
            if changed is None:
                self._look_at_all()
            else:
                self._look_at(changed)
        except BaseException:
            self._note(None)
            raise
        self._begun = True
        return self._totals()

    def _note(self, changed: Collection[bytes] | None) -> None:
        with self._lock:
            if changed is None:
                self._changed = None
            elif self._changed is not None:
                self._changed.update(changed)

    def _totals(self) -> Totals:
        queues = self._queues.values()
        since_ms = [queue.claimable_ms for queue in queues if queue.claimable_ms is not None]
        return Totals(
            published=self._published,
            claimed=self._claimed,
            done=self._done,
            depth=sum(queue.depth for queue in queues),
            claimable_ms=min(since_ms, default=None),
            logs=self._named,
            queues=len(self._queues),
            rooms=self._rooms,
        )

    def _look_at_all(self) -> None:
        """Read every log and queue, and forget deleted ones."""
        heads, queues = self._keys_of(keys.HEAD), self._keys_of(keys.QUEUE)
        for key in self._logs.keys() - set(heads):
            self._forget_log(key)
        for key in self._queues.keys() - set(queues):
            self._forget_queue(key)
        self._look_at_logs(heads)
        for key in queues:
            self._look_at_queue(key)

    def _look_at(self, changed: set[bytes]) -> None:
        watched = [key for key in changed if key[1] in _WATCHED]
        self._look_at_logs([key for key in watched if key[1] == keys.HEAD])
        queues = {key for key in watched if key[1] == keys.QUEUE}
        for key in watched:
            queues |= self._takers.get(key, set())
        for key in queues:
            self._look_at_queue(key)

    def _keys_of(self, kind: int) -> list[bytes]:
        start, stop = keys.range_of(keys.prefix(kind))
        all_keys: list[bytes] = []
        while page := self._store.view(
            lambda view: view.find(start, stop, limit=LOOKED_AT_PER_STEP)  # noqa: B023
        ):
            all_keys += page
            start = keys.successor(page[-1])
        return all_keys

    def _look_at_logs(self, heads: list[bytes]) -> None:
        for page in _steps(heads):
            logs = self._store.view(lambda view: [self._log(view, key) for key in page])  # noqa: B023
            for key, log in zip(page, logs, strict=True):
                if log.name.startswith(OWN):
                    continue
                if self._begun:
                    self._published += log.counted
                self._forget_log(key)
                if not log.is_gone:
                    self._logs[key] = log.name, log.end
                    self._count(log.name, 1)

    def _log(self, view: View, key: bytes) -> _CountedLog:
        """Return a log with its number of new records; records shared with a parent do not count."""
        head = view.entity(key, Head)
        if key in self._logs:
            known_end = self._logs[key][1]
        else:
            fork = fork_of(view, keys.number(key))
            known_end = max(head.dropped, fork.point) if fork else head.dropped
        counted = head.count(known_end, head.end) if head.end > known_end else 0
        is_gone = head.deleted or not head.exists()
        return _CountedLog(head.name, head.end, counted, is_gone)

    def _forget_log(self, key: bytes) -> None:
        name, _ = self._logs.pop(key, ("", 0))
        if name:
            self._count(name, -1)

    def _count(self, name: str, by: int) -> None:
        """Count a log as a room, or as a log named by a user; the logs of queues count as neither.

        Only the first partition of a log counts, for the whole log.
        """
        partition = partition_of(name)
        if partition is not None and partition[1]:
            return
        if name.startswith(ROOM):
            self._rooms += by * (FORK_NAME not in name)
        elif not name.startswith((INBOX, LATER)):
            self._named += by

    def _look_at_queue(self, key: bytes) -> None:
        name = keys.leading_name(key)
        queue: _CountedQueue | Facts | None = self._store.view(lambda view: _queue(view, name))
        while isinstance(queue, Facts):  # many logs are read in steps
            queue = self._store.view(lambda view: _queue(view, name))
        before = self._forget_queue(key)
        if queue is None:
            return
        if self._begun:
            claimed, done = (before.claimed, before.done) if before else (0, 0)
            self._claimed += max(0, queue.claimed - claimed)
            self._done += max(0, queue.done - done)
        self._queues[key] = queue
        for source in queue.sources:
            self._takers.setdefault(source, set()).add(key)

    def _forget_queue(self, key: bytes) -> _CountedQueue | None:
        before = self._queues.pop(key, None)
        for source in before.sources if before else ():
            takers = self._takers.get(source, set())
            takers.discard(key)
            if not takers:
                self._takers.pop(source, None)
        return before


def _queue(view: View, name: str) -> _CountedQueue | Facts | None:
    """Return the counts of a queue, or its facts if further logs must be read first."""
    facts = facts_of(view, name, all_logs=True, any_router=True)
    if facts is None or facts.partial:
        return facts
    queue = view.entity(keys.queue(name), QueueState)
    counts = queue.counts
    unrouted = sum(source.behind for source in facts.sources)
    return _CountedQueue(
        claimed=counts.claimed,
        done=queue.done_ever,
        depth=counts.available + counts.in_flight + unrouted,
        claimable_ms=claimable_ms(view, queue, facts.sources),
        sources=tuple(_sources(view, named_logs(name, queue.spec))),
    )


def _sources(view: View, logs: Iterable[str]) -> Iterator[bytes]:
    for log in logs:
        key = keys.log_name(log)
        yield key
        if log_id := view.entity(key, Name).log_id:
            yield keys.head(log_id)


def _steps(heads: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(heads), LOOKED_AT_PER_STEP):
        yield heads[start : start + LOOKED_AT_PER_STEP]
