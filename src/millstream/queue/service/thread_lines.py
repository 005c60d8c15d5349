"""Claims of threads that wait: each thread sleeps in the line of its queue until it has a duty.

Another thread of the same process usually appends the awaited message. The commit of the append
then also makes the waiting claim and reads the message, so the waiting thread wakes once, with its
messages. Otherwise the first thread in line looks when the queue has changed.
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
from millstream.queue.service import claims
from millstream.queue.service.lines import Lines
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store

UNTOLD_S = 1.0
"""How long a claim waits for the outcome of a commit. An interrupted committer may never report it.
"""

Outcome = Ticket[Any]
"""The ticket of a claim made by another caller's commit; its result is `claim_in_commit`'s."""


class WaitingThread:
    """A thread that waits in a line."""

    __slots__ = ("_deliveries", "_has_left", "_store", "is_expected", "query")

    def __init__(self, store: Store, query: ClaimMessages) -> None:
        self.query = query
        self.is_expected = False
        """Whether a commit makes its claim and has not reported the outcome."""
        self._store = store
        self._deliveries: SimpleQueue[Duty | Outcome] = SimpleQueue()
        self._has_left = False

    def tell(self, duty: Duty) -> None:
        """Give the waiter a duty; from any thread."""
        self._deliveries.put(duty)

    def claim(self) -> Outcome:
        """Return the waiter's claim, to be made by a commit that appends messages."""
        self.is_expected = True
        run = partial(claims.claim_in_commit, query=self.query)
        return Ticket(run, on_done=self._arrived)

    def next_duty(self, timeout_s: float) -> Duty | Outcome | None:
        """Return the next duty, or the outcome of a commit; None after the timeout."""
        try:
            return self._deliveries.get(timeout=max(0.0, min(timeout_s, TIMEOUT_MAX)))
        except Empty:
            return None

    def leave(self) -> None:
        """Stop waiting for any reason. Messages that a commit still claims for this waiter are
        given back.
        """
        self._has_left = True
        self._return_untaken()

    def _arrived(self, outcome: Outcome) -> None:
        """Deliver an outcome; called by the committing thread under the write lock."""
        self._deliveries.put(outcome)
        if self._has_left:
            self._return_untaken()

    def _return_untaken(self) -> None:
        """Give back claimed messages that were delivered and not received; called by either thread."""
        with suppress(Empty):
            while True:
                delivery = self._deliveries.get_nowait()
                if (
                    not isinstance(delivery, str)
                    and (claimed := claimed_messages(delivery))
                    and not self.query.pop
                ):
                    self._give_back(claimed[1])

    def _give_back(self, lots: Sequence[Lot]) -> None:
        command = ReturnClaims(self.query.queue, lots_claimed(lots))
        with suppress(MillstreamError):  # else the messages return when their lease ends
            self._store.submit([Ticket(partial(give_back, command=command), on_done=_ignore)])


def claimed_messages(outcome: Outcome) -> tuple[Granted, list[Lot]] | None:
    """Return the messages that a commit claimed for a waiter; None if the claim failed or got nothing."""
    if outcome.error is not None or outcome.result is None:
        return None
    granted, lots = outcome.result
    return (granted, lots) if lots else None


ClaimArguments = tuple[int, int | None, str, bool]
"""The arguments of a claim. A claim that a commit has served had valid arguments."""


def _arguments_of(query: ClaimMessages) -> ClaimArguments:
    return query.count, query.lease_ms, query.consumer, query.pop


class ThreadLines(Lines[WaitingThread]):
    """The lines of threads. If a store drops them from its caches, later claims use new lines."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, _tell)
        self._keeping_up: dict[str, ClaimArguments] = {}
        """By queue: the arguments of the last claim, if a commit served it and no message remained.
        """

    def keeps_up(self, query: ClaimMessages) -> bool:
        """Return whether a claim will have to wait, because the previous claim with its arguments
        had to.

        A claim in vain would hold the write lock and delay the producer. A claim that waits by
        mistake glances at the queue first, so it misses nothing.
        """
        return not query.acked and self._keeping_up.get(query.queue) == _arguments_of(query)

    def note_pace(self, query: ClaimMessages, *, keeps_up: bool) -> None:
        """Record whether a commit served a claim and left no message, or messages were there
        before.
        """
        if keeps_up:
            self._keeping_up[query.queue] = _arguments_of(query)
        else:
            self._keeping_up.pop(query.queue, None)

    def claims_for(self, group: Sequence[Ticket[Any]]) -> list[Outcome]:
        """Return claims that wait for the appends of a commit group, to be made by its commit."""
        if not self.expects_any:
            return []
        logs = {getattr(ticket.operation, "appends_to", "") for ticket in group}
        waiters = [waiter for log in logs if log for waiter in self.expecting(keys.log_name(log))]
        return [waiter.claim() for waiter in waiters]


def _tell(duties: Sequence[tuple[WaitingThread, Duty]]) -> None:
    for waiter, duty in duties:
        waiter.tell(duty)


def _ignore(ticket: object) -> None:
    """Ignore the answer."""


def claim_messages(store: Store, query: ClaimMessages) -> list[Lot]:
    """Claim messages and wait for the first one if requested; payloads are read afterwards."""
    wait_ms = query.wait_ms
    until_s = store.clock.seconds() + wait_ms / 1000 if wait_ms else 0.0
    if wait_ms and store.caches.of(ThreadLines, store).keeps_up(query):
        return _claim_in_line(store, query, until_s) or claims.claim_now(store, query)[0]
    lots, _ = claims.claim_now(store, query)
    if lots or not (wait_ms and query.count) or store.clock.seconds() >= until_s:
        return lots
    try:
        return _claim_in_line(store, claims.without_acks(query), until_s)
    except WriteFailed:
        if query.acked:
            return []  # the acknowledgement is durable, so the claim must not report a failure
        raise


def _claim_in_line(store: Store, query: ClaimMessages, until_s: float) -> list[Lot]:
    queue = query.queue
    lines = store.caches.of(ThreadLines, store)
    store.listeners.add(group=lines.claims_for)
    waiter = WaitingThread(store, query)
    try:
        lines.join(queue, waiter, query.count)
        return _serve(store, lines, waiter, until_s)
    except BaseException:
        # An interrupt may come at any point, so the next in line glances at the queue.
        lines.stop_watching(waiter)
        lines.served(queue, waiter)
        raise
    finally:
        waiter.leave()


def _serve(store: Store, lines: ThreadLines, waiter: WaitingThread, until_s: float) -> list[Lot]:
    """Carry out the duties of a waiter until it has messages or its time is up."""
    # The loop is the shell of `model.line`: the line decides, this thread carries out. A claim that
    # a commit makes for a waiter saves the waiter's own commit: 2.1 instead of 2.5 commits per
    # message with one producer and one consumer thread (2026-11). Its price is `UNTOLD_S`: a
    # committer that was interrupted reports nothing, so an expected waiter sleeps only this long
    # before it looks.
    queue, clock, change_s = waiter.query.queue, store.clock, inf
    while True:
        remaining_s = until_s - clock.seconds()
        pause_s = _pause_s(lines, waiter, min(remaining_s, change_s))
        duty = waiter.next_duty(pause_s)
        if duty is None and pause_s >= UNTOLD_S:
            change_s -= pause_s
            duty = "look" if lines.looks(queue, waiter) else None
            if duty is None and change_s > 0:
                continue
        if duty == "watch":
            next_change_s = lines.watch(queue, waiter)
            change_s = inf if next_change_s is None else next_change_s
            if not change_s:
                lines.note_pace(waiter.query, keeps_up=False)
        elif duty is not None:
            change_s, waiter.is_expected = inf, False
            lines.stop_watching(waiter)
            lots, remaining = (
                ([], 0) if isinstance(duty, str) else _claimed_by_commit(store, queue, duty)
            )
            if lots:
                lines.note_pace(waiter.query, keeps_up=not remaining)
            else:
                lots, remaining = claims.claim_now(store, waiter.query)
            if lots:
                lines.served(queue, waiter, remaining)
                return lots
            if not lines.in_vain(queue, waiter):
                return []
        elif change_s <= remaining_s:
            change_s = inf
            lines.change(queue)
        elif until_s <= clock.seconds() and lines.leave(queue, waiter):
            return []  # else a look was assigned just now, or a commit makes the claim


def _pause_s(lines: ThreadLines, waiter: WaitingThread, pause_max_s: float) -> float:
    """Return how long a waiter may sleep: briefly while a commit may have something to report."""
    if waiter.is_expected:
        return UNTOLD_S
    return min(pause_max_s, UNTOLD_S) if lines.is_watching(waiter) else pause_max_s


def _claimed_by_commit(store: Store, queue: str, outcome: Outcome) -> tuple[list[Lot], int]:
    """Return the messages that a commit claimed for a waiter, and the number that remained."""
    claimed = claimed_messages(outcome)
    if claimed is None:
        return [], 0
    granted, lots = claimed
    claims.note_ahead(store, queue, granted)
    return lots, granted.remaining
