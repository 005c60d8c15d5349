"""A tally of a whole store: how much was published, claimed and done, and how much waits.

It is made from counts that logs and queues keep anyway. The first look goes through all of them;
from then on each commit notes what it changes, and a look asks for that alone. So its cost follows
what happens, not how much there is. A tally that is closed costs nothing.
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
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import INBOX, LATER, OWN, Facts, facts_of, named_logs
from millstream.queue.service.info import claimable_ms
from millstream.store.state.view import View
from millstream.store.store import Store

LOOKED_AT_PER_STEP = 500
"""Logs that are looked at before the mutex is let go for a moment."""

_WATCHED = (keys.HEAD, keys.NAME, keys.QUEUE)


class Totals(Struct, frozen=True):
    """How a store stands. What was published, claimed and done is counted from the first look on."""

    published: int = 0
    """Records appended to logs, puts to queues and messages of rooms among them."""
    claimed: int = 0
    """Messages handed out, repeats included."""
    done: int = 0
    depth: int = 0
    """Messages of all queues that are neither done nor failed, records to be routed among them."""
    claimable_ms: int | None = None
    """Since when the message that waits longest can be claimed, in wall time; a time to come if all
    are delayed, None if none waits."""
    logs: int = 0
    """Logs that users have named; one with partitions is one."""
    queues: int = 0
    rooms: int = 0


class _SeenLog(NamedTuple):
    name: str
    end: int
    counted: int
    """How many records were appended since the end that was known."""
    is_gone: bool


class _SeenQueue(NamedTuple):
    claimed: int
    done: int
    depth: int
    claimable_ms: int | None
    sources: tuple[bytes, ...]
    """The keys of what else changes how many messages it has: logs that it names."""


class Tally:
    """The totals of one store. A thread looks at a time; commits on any thread are noted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._changed: set[bytes] | None = None
        """Entities that have changed since the last look; None: any may have."""
        self._begun = False
        self._logs: dict[bytes, tuple[str, int]] = {}
        self._queues: dict[bytes, _SeenQueue] = {}
        self._takers: dict[bytes, set[bytes]] = {}
        """Names and heads of logs → the queues that name them."""
        self._published = self._claimed = self._done = 0
        self._named = self._rooms = 0
        store.watch.follow(self._note)

    def close(self) -> None:
        """Follow the store no longer."""
        self._store.watch.unfollow(self._note)

    def look(self) -> Totals:
        """The totals as of now, with what other processes have committed."""
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
        seen = self._queues.values()
        since_ms = [one.claimable_ms for one in seen if one.claimable_ms is not None]
        return Totals(
            published=self._published,
            claimed=self._claimed,
            done=self._done,
            depth=sum(one.depth for one in seen),
            claimable_ms=min(since_ms, default=None),
            logs=self._named,
            queues=len(self._queues),
            rooms=self._rooms,
        )

    # What is looked at.

    def _look_at_all(self) -> None:
        """Look at every log and queue; what has gone since the last look is forgotten."""
        heads, queues = self._keys_of(keys.HEAD), self._keys_of(keys.QUEUE)
        for key in self._logs.keys() - set(heads):
            self._forget_log(key)
        for key in self._queues.keys() - set(queues):
            self._forget_queue(key)
        self._look_at_logs(heads)
        for key in queues:
            self._look_at_queue(key)

    def _look_at(self, changed: set[bytes]) -> None:
        known = [key for key in changed if key[1] in _WATCHED]
        self._look_at_logs([key for key in known if key[1] == keys.HEAD])
        queues = {key for key in known if key[1] == keys.QUEUE}
        for key in known:
            queues |= self._takers.get(key, set())
        for key in queues:
            self._look_at_queue(key)

    def _keys_of(self, kind: int) -> list[bytes]:
        start, stop = keys.range_of(keys.prefix(kind))
        found: list[bytes] = []
        while page := self._store.view(
            lambda view: view.find(start, stop, limit=LOOKED_AT_PER_STEP)  # noqa: B023
        ):
            found += page
            start = page[-1] + b"\x00"
        return found

    def _look_at_logs(self, heads: list[bytes]) -> None:
        for some in _steps(heads):
            found = self._store.view(lambda view: [self._log(view, key) for key in some])  # noqa: B023
            for key, log in zip(some, found, strict=True):
                if log.name.startswith(OWN):
                    continue
                if self._begun:
                    self._published += log.counted
                self._forget_log(key)
                if not log.is_gone:
                    self._logs[key] = log.name, log.end
                    self._count(log.name, 1)

    def _log(self, view: View, key: bytes) -> _SeenLog:
        """A log, and what was appended to it; of one that was not known, what is not its parent's."""
        head = view.entity(key, Head)
        if key in self._logs:
            known = self._logs[key][1]
        else:
            fork = fork_of(view, keys.number(key))
            known = max(head.dropped, fork.point) if fork else head.dropped
        counted = head.count(known, head.end) if head.end > known else 0
        is_gone = head.deleted or not head.exists()
        return _SeenLog(head.name, head.end, counted, is_gone)

    def _forget_log(self, key: bytes) -> None:
        name, _ = self._logs.pop(key, ("", 0))
        if name:
            self._count(name, -1)

    def _count(self, name: str, by: int) -> None:
        """Count a log as a room, or as one that a user has named; one of a queue's own is neither.

        Of partitions the first counts: it stands for the log that has them.
        """
        part = partition_of(name)
        if part is not None and part[1]:
            return
        if name.startswith(ROOM):
            self._rooms += by * (FORK_NAME not in name)
        elif not name.startswith((INBOX, LATER)):
            self._named += by

    def _look_at_queue(self, key: bytes) -> None:
        name = key[2:].decode()
        found: _SeenQueue | Facts | None = self._store.view(lambda view: _queue(view, name))
        while isinstance(found, Facts):  # many logs are looked at in steps
            found = self._store.view(lambda view: _queue(view, name))
        before = self._forget_queue(key)
        if found is None:
            return
        if self._begun:
            claimed, done = (before.claimed, before.done) if before else (0, 0)
            self._claimed += max(0, found.claimed - claimed)
            self._done += max(0, found.done - done)
        self._queues[key] = found
        for source in found.sources:
            self._takers.setdefault(source, set()).add(key)

    def _forget_queue(self, key: bytes) -> _SeenQueue | None:
        before = self._queues.pop(key, None)
        for source in before.sources if before else ():
            takers = self._takers.get(source, set())
            takers.discard(key)
            if not takers:
                self._takers.pop(source, None)
        return before


def _queue(view: View, name: str) -> _SeenQueue | Facts | None:
    """How a queue stands; facts, if more logs are to be looked at first."""
    facts = facts_of(view, name, all_logs=True, any_router=True)
    if facts is None or facts.partial:
        return facts
    queue = view.entity(keys.queue(name), QueueState)
    counts = queue.counts
    unrouted = sum(source.behind for source in facts.sources)
    return _SeenQueue(
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


def _steps(found: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(found), LOOKED_AT_PER_STEP):
        yield found[at : at + LOOKED_AT_PER_STEP]
