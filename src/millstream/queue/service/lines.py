"""The lines of all queues of a store, with their lock, and the watch for a queue's changes.

`model.line` has the rules of a line, and `claim_wait` the steps of a waiter. Threads wait in
`thread_lines`, coroutines in `embedded.loop.loop_lines`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.format import keys
from millstream.log.model.head import Name
from millstream.queue.model.grants import Granted
from millstream.queue.model.line import Duty, Line
from millstream.queue.model.message import Lot
from millstream.queue.model.spec import no_queue
from millstream.queue.rules.sources import Facts, facts_of, named_logs
from millstream.queue.service import claims
from millstream.queue.service.backlog import behind
from millstream.queue.service.claim_wait import NOTHING, Claimed, LineStep, Served, WaitingClaim
from millstream.queue.service.info import change_in_s
from millstream.store.commit.ticket import Ticket
from millstream.store.state.view import View
from millstream.store.store import Store
from millstream.store.watch import Wake

W = TypeVar("W", bound=WaitingClaim)


class WatchedKeys(NamedTuple):
    """The keys whose change may make messages of a queue claimable."""

    keys: list[bytes]
    """The keys of the queue and of its named logs."""
    claimable: list[bytes]
    """The names of logs whose new records the commit of an append can claim."""


class KeysWatched(dict[str, WatchedKeys]):
    """By queue: the keys that its consumers watched last."""


def watched_before(store: Store, name: str) -> WatchedKeys:
    """Return the keys that consumers of a queue watched last, or by a glance without a last watch."""
    watched = store.caches.of(KeysWatched).get(name)
    return glance(store, name)[0] if watched is None else watched


def glance(store: Store, name: str) -> tuple[WatchedKeys, float]:
    """Return the keys to watch for a queue, and the seconds until time alone makes a message due.

    The seconds are 0 if a message is claimable now. Watchers of the queue also wake when a log that
    matches a pattern changes. A glance usually reads the store once, because a consumer that keeps
    up glances before every message.
    """
    facts = None
    while facts is None or facts.partial:
        facts, ids, change_s = store.view(partial(_glance, name=name))
    names = [keys.log_name(log) for log in named_logs(name, facts.spec)]
    watched = WatchedKeys(
        [keys.queue(name), *names, *map(keys.head, ids)],
        names if claims.can_claim_in_commit(facts) else [],
    )
    store.caches.of(KeysWatched)[name] = watched
    return watched, inf if change_s is None else change_s


def _glance(view: View, name: str) -> tuple[Facts, list[int], float | None]:
    """Return the facts about a queue, the ids of its named logs, and the seconds until a due time."""
    facts = facts_of(view, name)
    if facts is None:
        raise no_queue(name)
    logs = [view.entity(keys.log_name(log), Name) for log in named_logs(name, facts.spec)]
    unrouted = behind(facts) > 0
    change_s = None if facts.paused else change_in_s(view, name, unrouted=unrouted)
    return facts, [log.log_id for log in logs if log.log_id], change_s


class Lines(Generic[W]):
    """The lines of a store's queues; every thread may call its methods."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._lines: dict[str, Line[W]] = {}
        self._watched: dict[W, tuple[list[bytes], Wake]] = {}
        self._append_watchers: dict[bytes, dict[W, str]] = {}
        """Names of logs → waiters that watch for appends to these logs, and their queues."""

    def join(self, waiter: W) -> None:
        """Add a waiter to the end of its queue's line."""
        query = waiter.query
        self._do(query.queue, lambda line: line.join(waiter, query.count))

    def change(self, queue: str) -> None:
        """Report that a message of the queue may be claimable."""
        self._do(queue, self._look)

    def report(self, waiter: W, step: LineStep) -> bool:
        """Report a step of a waiter to its line, and return the answer for `claim_wait`."""
        queue = waiter.query.queue
        if step == "change":
            return self._do(queue, self._look)
        if step == "in vain":
            return self._do(queue, lambda line: line.in_vain(waiter), waiter)

        def leave(line: Line[W]) -> list[tuple[W, Duty]]:
            self._stop_watching(waiter)
            if isinstance(step, Served):
                return line.served(waiter, step.remaining)
            return line.leave(waiter)

        return not self._do(queue, leave, waiter)

    def deliver(self, duties: Sequence[tuple[W, Duty]]) -> None:
        """Deliver duties; called outside the lock, possibly by a committing thread, so it is quick."""
        for waiter, duty in duties:
            waiter.deliver(duty)

    def watch(self, waiter: W) -> float | None:
        """Watch the queue for its line; None if the waiter watches already, or is not the first.

        Returns when time alone may make a message claimable, by the store's clock.
        """
        queue = waiter.query.queue
        with self._lock:
            if waiter in self._watched or not self._watches(waiter):
                return None  # so a crowd of leaving waiters costs no glance each
        watched = watched_before(self.store, queue)
        while self._begin_watch(waiter, watched):
            # An append before the watch began woke no waiter, so glance again.
            before, (watched, change_s) = watched, glance(self.store, queue)
            if watched == before:
                return self.store.clock.seconds() + change_s
        return None

    def _begin_watch(self, waiter: W, watched: WatchedKeys) -> bool:
        """Register a waiter for changes; return False if it is not the watcher any more."""
        queue = waiter.query.queue
        wake = partial(self.change, queue)
        with self._lock:
            self._stop_watching(waiter)
            if not self._watches(waiter):
                return False
            for key in watched.keys:
                self.store.watch.add(key, wake)
            for key in watched.claimable:
                self._append_watchers.setdefault(key, {})[waiter] = queue
            self._watched[waiter] = watched.keys, wake
        return True

    def expecting(self, group: Iterable[Ticket[Any]]) -> list[W]:
        """Return the waiters to serve from the commit of a group, and mark them as looking.

        The caller must run `claims.claim_in_commit` for each waiter after the appends of the group,
        and deliver the outcome; these waiters get no duty.
        """
        # A waiter that woke after the commit would need a commit of its own. The committer makes
        # the claim instead, so that the waiter wakes once, with its messages. If the commit fails
        # or grants nothing, the line still has the waiter as looking, and it looks by itself.
        if not self._append_watchers:
            return []
        waiters: list[W] = []
        logs = {getattr(ticket.operation, "appends_to", "") for ticket in group}
        with self._lock:
            for key in [keys.log_name(log) for log in logs if log]:
                for queue in [*self._append_watchers.get(key, {}).values()]:
                    waiters += [waiter for waiter, _ in self._look(self._lines[queue])]
        return waiters

    def note_outcome(self, waiter: W, outcome: tuple[Granted, list[Lot]] | None) -> Claimed:
        """Record the outcome of `claims.claim_in_commit`, and return it as a delivery."""
        if outcome is None or not outcome[1]:
            return NOTHING
        granted, lots = outcome
        claims.note_ahead(self.store, waiter.query.queue, granted)
        return lots, granted.remaining

    def count(self, queue: str) -> int:
        """Return the number of claims that wait for a queue."""
        with self._lock:
            return len(self._lines.get(queue, ()))

    def looks(self, waiter: W) -> bool:
        """Return whether a waiter looks, by itself or through a commit."""
        with self._lock:
            line = self._lines.get(waiter.query.queue)
            return line is not None and line.looks(waiter)

    def is_watching(self, waiter: W) -> bool:
        """Return whether the waiter watches the queue."""
        return waiter in self._watched

    def _watches(self, waiter: W) -> bool:
        line = self._lines.get(waiter.query.queue)
        return line is not None and line.watches(waiter)

    def _look(self, line: Line[W]) -> list[tuple[W, Duty]]:
        """Report a change to a line: the watcher looks, and its watch ends."""
        duties = line.change()
        for waiter, _ in duties:
            self._stop_watching(waiter)
        return duties

    def _stop_watching(self, waiter: W) -> None:
        watch = self._watched.pop(waiter, None)
        if watch is not None:
            for key in watch[0]:
                self.store.watch.remove(key, watch[1])
                watchers = self._append_watchers.get(key)
                if watchers is not None and watchers.pop(waiter, "") and not watchers:
                    del self._append_watchers[key]

    def _do(
        self, queue: str, act: Callable[[Line[W]], list[tuple[W, Duty]]], waiter: W | None = None
    ) -> bool:
        """Apply an event to a queue's line and deliver the resulting duties.

        Returns whether `waiter` is in line afterwards.
        """
        with self._lock:
            line = self._lines.setdefault(queue, Line())
            duties = act(line)
            is_in_line = waiter in line
            if not line:
                del self._lines[queue]
        self.store.watch.stir()
        if duties:
            self.deliver(duties)
        return is_in_line
