"""Claims of threads that wait: each sleeps in the line of its queue until it has a duty.

What a waiting claim waits for is mostly appended by another thread of this process. The commit that
appends it then claims it too, and reads it, whichever thread makes that commit: the waiting thread is
woken once, with its messages. Else the first in line looks by itself when the queue has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any

from millstream.errors import MillstreamError, WriteFailed
from millstream.format import keys
from millstream.queue.commands import ClaimMessages, Granted, ReturnClaims
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot
from millstream.queue.rules.endings import give_back
from millstream.queue.runs import lots_claimed
from millstream.queue.service import consuming
from millstream.queue.service.waiting import Lines
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store

UNTOLD_S = 1.0
"""How long a claim waits for the outcome of a commit: an interrupted committer may not have told it."""

Outcome = Ticket[Any]
"""Of a claim that a commit took along: its answer is that of `consuming.claim_arriving`."""


class WaitingThread:
    """A thread that waits in a line."""

    __slots__ = ("_has_left", "_store", "_told", "is_expected", "query")

    def __init__(self, store: Store, query: ClaimMessages) -> None:
        self.query = query
        self.is_expected = False
        """Whether a commit takes its claim along, and has not told what came of it."""
        self._store = store
        self._told: SimpleQueue[Duty | Outcome] = SimpleQueue()
        self._has_left = False

    def tell(self, duty: Duty) -> None:
        """Have it do something; from any thread."""
        self._told.put(duty)

    def claim(self) -> Outcome:
        """Its claim, to be made by a commit that brings messages."""
        self.is_expected = True
        run = partial(consuming.claim_arriving, query=self.query)
        return Ticket(run, on_done=self._arrived)

    def next_duty(self, most_s: float) -> Duty | Outcome | None:
        """What it is to do, or what a commit got for it; None if nothing came in time."""
        try:
            return self._told.get(timeout=max(0.0, min(most_s, TIMEOUT_MAX)))
        except Empty:
            return None

    def leave(self) -> None:
        """It waits no more, whatever ended that: what a commit still brings it goes back."""
        self._has_left = True
        self._return_untaken()

    def _arrived(self, outcome: Outcome) -> None:
        """Called by the thread that has committed, in its turn to write."""
        self._told.put(outcome)
        if self._has_left:
            self._return_untaken()

    def _return_untaken(self) -> None:
        """Give back what it was handed and did not take; whichever of two threads finds it."""
        with suppress(Empty):
            while True:
                told = self._told.get_nowait()
                if not isinstance(told, str) and (got := brought(told)) and not self.query.pop:
                    self._give_back(got[1])

    def _give_back(self, found: Sequence[Lot]) -> None:
        command = ReturnClaims(self.query.queue, lots_claimed(found))
        with suppress(MillstreamError):  # else they come again when their lease ends
            self._store.submit([Ticket(partial(give_back, command=command), on_done=_ignore)])


def brought(outcome: Outcome) -> tuple[Granted, list[Lot]] | None:
    """What a commit got for a waiter; None if that is nothing, or if it failed."""
    if outcome.error is not None or outcome.result is None:
        return None
    granted, found = outcome.result
    return (granted, found) if found else None


Asked = tuple[int, int | None, str, bool]
"""What a claim asks for. One that a commit has served asked for nothing wrong."""


def _asked(query: ClaimMessages) -> Asked:
    return query.count, query.lease_ms, query.consumer, query.pop


class ThreadLines(Lines[WaitingThread]):
    """The lines of threads. If a store forgets them, later claims stand in lines of their own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, _tell)
        self._keeping_up: dict[str, Asked] = {}
        """By queue: what the last claim asked for, if a commit served it and left nothing."""

    def keeps_up(self, query: ClaimMessages) -> bool:
        """Whether a claim will have to wait, as the one before had to: no look is needed to know.

        A claim that is made in vain takes the turn to write, for which the producer would wait. One
        that waits by mistake glances at the queue first.
        """
        return not query.acked and self._keeping_up.get(query.queue) == _asked(query)

    def note_pace(self, query: ClaimMessages, *, keeps_up: bool) -> None:
        """A commit has served a claim and left nothing; or there was something before it waited."""
        if keeps_up:
            self._keeping_up[query.queue] = _asked(query)
        else:
            self._keeping_up.pop(query.queue, None)

    def arriving(self, group: Sequence[Ticket[Any]]) -> list[Outcome]:
        """Claims that wait for what a group appends, to be made by its commit."""
        if not self.expects_any:
            return []
        logs = {getattr(ticket.operation, "appends_to", "") for ticket in group}
        waiters = [one for log in logs if log for one in self.expecting(keys.log_name(log))]
        return [waiter.claim() for waiter in waiters]


def _tell(duties: Sequence[tuple[WaitingThread, Duty]]) -> None:
    for waiter, duty in duties:
        waiter.tell(duty)


def _ignore(ticket: object) -> None:
    """Nobody waits for it."""


def claim_messages(store: Store, query: ClaimMessages) -> list[Lot]:
    """Claim messages, waiting for the first if asked; their payloads are read afterwards."""
    wait_ms = query.wait_ms
    until_s = store.clock.seconds() + wait_ms / 1000 if wait_ms else 0.0
    if wait_ms and store.caches.of(ThreadLines, store).keeps_up(query):
        return _claim_in_line(store, query, until_s) or consuming.claim_now(store, query)[0]
    found, _ = consuming.claim_now(store, query)
    if found or not (wait_ms and query.count) or store.clock.seconds() >= until_s:
        return found
    try:
        return _claim_in_line(store, consuming.without_acks(query), until_s)
    except WriteFailed:
        if query.acked:
            return []  # what was acknowledged is done: the caller must not be told otherwise
        raise


def _claim_in_line(store: Store, query: ClaimMessages, until_s: float) -> list[Lot]:
    queue = query.queue
    lines = store.caches.of(ThreadLines, store)
    store.listeners.add(group=lines.arriving)
    waiter = WaitingThread(store, query)
    try:
        lines.join(queue, waiter, query.count)
        return _serve(store, lines, waiter, until_s)
    except BaseException:
        # Also an interrupt, wherever it came: the next in line glances at the queue.
        lines.stop_watching(waiter)
        lines.served(queue, waiter)
        raise
    finally:
        waiter.leave()


def _serve(store: Store, lines: ThreadLines, waiter: WaitingThread, until_s: float) -> list[Lot]:
    """Do the duties of a waiter until it has messages, or its time is up."""
    queue, clock, change_s = waiter.query.queue, store.clock, inf
    while True:
        left_s = until_s - clock.seconds()
        pause_s = _pause_s(lines, waiter, min(left_s, change_s))
        duty = waiter.next_duty(pause_s)
        if duty is None and pause_s >= UNTOLD_S:
            change_s -= pause_s
            duty = "look" if lines.looks(queue, waiter) else None
            if duty is None and change_s > 0:
                continue
        if duty == "watch":
            found_s = lines.watch(queue, waiter)
            change_s = inf if found_s is None else found_s
            if not change_s:
                lines.note_pace(waiter.query, keeps_up=False)
        elif duty is not None:
            change_s, waiter.is_expected = inf, False
            lines.stop_watching(waiter)
            found, left = ([], 0) if isinstance(duty, str) else _taken(store, queue, duty)
            if found:
                lines.note_pace(waiter.query, keeps_up=not left)
            else:
                found, left = consuming.claim_now(store, waiter.query)
            if found:
                lines.served(queue, waiter, left)
                return found
            if not lines.in_vain(queue, waiter):
                return []
        elif change_s <= left_s:
            change_s = inf
            lines.change(queue)
        elif until_s <= clock.seconds() and lines.leave(queue, waiter):
            return []  # else it was told to look just now, or a commit takes its claim along


def _pause_s(lines: ThreadLines, waiter: WaitingThread, most_s: float) -> float:
    """How long a waiter sleeps: not for long while a commit may have to tell it something."""
    if waiter.is_expected:
        return UNTOLD_S
    return min(most_s, UNTOLD_S) if lines.is_watching(waiter) else most_s


def _taken(store: Store, queue: str, outcome: Outcome) -> tuple[list[Lot], int]:
    """What a commit got for a waiter, and how many messages it left; the next claim knows of these."""
    got = brought(outcome)
    if got is None:
        return [], 0
    granted, found = got
    consuming.note_ahead(store, queue, granted)
    return found, granted.remaining
