"""Claims of threads that wait: each thread sleeps in the line of its queue until it has a duty.

Another thread of the same process usually appends the awaited message. The commit of the append
then also makes the waiting claim and reads the message, so the waiting thread wakes once, with its
messages. Otherwise the first thread in line looks when the queue has changed. `claim_wait` has the
steps of a wait, and this module carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from threading import TIMEOUT_MAX
from typing import Any, Literal

from millstream.errors import MillstreamError, WriteFailed
from millstream.queue.commands import ClaimMessages, ReturnClaims
from millstream.queue.model.grants import Granted
from millstream.queue.model.message import Lot
from millstream.queue.rules.endings import give_back
from millstream.queue.runs import lots_claimed
from millstream.queue.service import claims
from millstream.queue.service.claim_wait import (
    Claimed,
    Delivery,
    LineSleep,
    Served,
    WaitingClaim,
    WaitStep,
    wait_in_line,
)
from millstream.queue.service.lines import Lines
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store
from millstream.store.wait_breaker import BreakableWait

UNTOLD_S = 1.0
"""How long a claim waits for the outcome of a commit. An interrupted committer may never report it.
"""


class WaitingThread(WaitingClaim):
    """A thread that waits in a line."""

    __slots__ = ("_lines",)

    def __init__(self, lines: ThreadLines, query: ClaimMessages) -> None:
        super().__init__(query, lines.give_back)
        self._lines = lines

    def claim(self) -> Ticket[Any]:
        """Return the waiter's claim, to be made by a commit that appends messages."""
        return Ticket(partial(claims.claim_in_commit, query=self.query), on_done=self._arrived)

    def _arrived(self, ticket: Ticket[Any]) -> None:
        """Deliver the outcome of a claim; called by the committing thread under the write lock."""
        outcome = None if ticket.error is not None else ticket.result
        self.deliver(self._lines.note_outcome(self, outcome))

    def break_off(self) -> None:
        """End the wait; called by any thread."""
        self.deliver("broken")

    def sleep(self, sleep: LineSleep) -> Delivery | Literal["due"] | None:
        """Carry out a sleep."""
        # A claim that a commit makes for a waiter saves the waiter's own commit: 2.1 instead of 2.5
        # commits per message with one producer and one consumer thread (2026-11). Its price is
        # `UNTOLD_S`: a committer that was interrupted reports nothing, so a waiter that a commit may
        # serve sleeps only this long before it checks whether it should look by itself.
        clock, lines, is_due_first = self._lines.store.clock, self._lines, sleep.is_due_first
        while True:
            pause_s = sleep.end_s - clock.seconds()
            is_short = pause_s > UNTOLD_S and (lines.is_watching(self) or lines.looks(self))
            timeout_s = UNTOLD_S if is_short else max(0.0, min(pause_s, TIMEOUT_MAX))
            with suppress(Empty):
                delivery = self._deliveries.get(timeout=timeout_s)
                return None if delivery == "broken" else delivery
            if is_short:
                if lines.looks(self):
                    return "look"
            elif is_due_first:
                return "due"
            elif sleep.until_s <= clock.seconds():
                return None


ClaimArguments = tuple[int, int | None, str, bool, bool]
"""The arguments of a claim. A claim that a commit has served had valid arguments."""


def _arguments_of(query: ClaimMessages) -> ClaimArguments:
    return query.count, query.lease_ms, query.consumer, query.pop, query.group_runs


class ThreadLines(Lines[WaitingThread]):
    """The lines of threads. If a store drops them from its caches, later claims use new lines."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
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

    def note_outcome(
        self, waiter: WaitingThread, outcome: tuple[Granted, list[Lot]] | None
    ) -> Claimed:
        """Record the outcome of a claim made by a commit, and whether its consumer keeps up."""
        lots, remaining = super().note_outcome(waiter, outcome)
        if remaining:
            self._keeping_up.pop(waiter.query.queue, None)
        elif lots:
            self._keeping_up[waiter.query.queue] = _arguments_of(waiter.query)
        return lots, remaining

    def claims_for(self, group: Sequence[Ticket[Any]]) -> list[Ticket[Any]]:
        """Return claims that wait for the appends of a commit group, to be made by its commit."""
        return [waiter.claim() for waiter in self.expecting(group)]

    def give_back(self, query: ClaimMessages, lots: Sequence[Lot]) -> None:
        """Give back messages that were claimed for a waiter that has left."""
        command = ReturnClaims(query.queue, lots_claimed(lots))
        with suppress(MillstreamError):  # else the messages return when their lease ends
            self.store.submit([Ticket(partial(give_back, command=command), on_done=_ignore)])

    def carry_out(self, waiter: WaitingThread, step: WaitStep) -> Any:
        """Carry out a step of a wait on the thread of the waiter, and return the answer."""
        if isinstance(step, LineSleep):
            return waiter.sleep(step)
        if step == "claim":
            return claims.claim_now(self.store, waiter.query)
        if step != "watch":
            return self.report(waiter, step)
        due_s = self.watch(waiter)
        if due_s is not None and due_s <= self.store.clock.seconds():
            self._keeping_up.pop(waiter.query.queue, None)
        return due_s


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
    lines = store.caches.of(ThreadLines, store)
    store.listeners.add(group=lines.claims_for)
    waiter, steps = WaitingThread(lines, query), wait_in_line(until_s)
    try:
        step = next(steps)
        with BreakableWait(waiter.break_off):
            lines.join(waiter)
            while True:
                step = steps.send(lines.carry_out(waiter, step))
    except StopIteration as end:
        claimed: list[Lot] = end.value
        return claimed
    except BaseException:  # also an interrupt, which may come between any two steps
        lines.report(waiter, Served())
        raise
    finally:
        waiter.leave()
