"""Claims of coroutines that wait in line, without a thread each.

If this event loop appends the awaited message, the first claim in line gets it by the same commit.
After any other change of the queue the task of the first claim looks. Tasks that wake in the same
turn of the loop claim by a single commit. `queue.service.claim_wait` has the steps of a wait, and this
module carries them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from threading import TIMEOUT_MAX
from typing import Any, Literal

from millstream.clock import Clock
from millstream.embedded.loop.claim_loop import ClientTurns, Loop, Returns, TakesLots, Turn
from millstream.engine.protocol import pace_of
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot
from millstream.queue.service import claims
from millstream.queue.service.claim_wait import (
    Claimed,
    Delivery,
    LineSleep,
    Served,
    WaitingClaim,
    wait_in_line,
)
from millstream.queue.service.lines import Lines
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store
from millstream.store.wait_breaker import BreakableWait

ClaimNow = Callable[[ClaimMessages, Turn | None], Awaitable[Claimed]]
"""Makes a claim without waiting; returns the messages and the number that remain."""


class _WaitingTask(WaitingClaim):
    """A task that waits in a line; only the event loop calls its methods."""

    __slots__ = ("_receive", "_wake_up", "is_received")

    def __init__(self, command: ClaimMessages, returns: Returns, receive: TakesLots | None) -> None:
        super().__init__(command, returns.give_back)
        self.is_received = False
        """Whether `receive` took the messages."""
        self._receive = receive
        self._wake_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, delivery: Delivery) -> None:
        """Deliver a duty or claimed messages, and wake the task."""
        super().deliver(delivery)
        self._wake()

    def hand_over(self, claimed: Claimed) -> None:
        """Deliver messages in the turn of the loop in which they come."""
        lots, is_gone = claimed[0], self._has_left or self._wake_up.cancelled()
        self.is_received = bool(lots and not is_gone and self._receive and self._receive(lots))
        self.deliver(claimed)

    def leave(self) -> None:
        """Stop waiting, and give back delivered messages that no consumer has received."""
        if not self.is_received:
            super().leave()

    async def sleep(self, sleep: LineSleep, clock: Clock) -> Delivery | Literal["due"] | None:
        """Carry out a sleep."""
        loop = asyncio.get_running_loop()
        while self._deliveries.empty():
            pause_s = sleep.end_s - clock.seconds()
            if pause_s > 0:
                self._wake_up = loop.create_future()
                timer = loop.call_later(min(pause_s, TIMEOUT_MAX), self._wake)
                try:
                    await self._wake_up
                finally:
                    timer.cancel()
            if self._deliveries.empty():
                if sleep.is_due_first:
                    return "due"
                if sleep.until_s <= clock.seconds():
                    return None
        delivery = self._deliveries.get_nowait()
        return None if delivery == "broken" else delivery

    def _wake(self) -> None:
        if not self._wake_up.done():
            self._wake_up.set_result(None)


class LoopLines(Lines[_WaitingTask]):
    """The lines of a session's tasks."""

    def __init__(self, store: Store, loop: Loop, returns: Returns, claim_now: ClaimNow) -> None:
        super().__init__(store)
        self._loop = loop
        self._returns = returns
        self._claim_now = claim_now

    def claims_for(
        self, group: Sequence[Ticket[Any]]
    ) -> list[tuple[ClaimMessages, Callable[[Any], None]]]:
        """Return claims that wait for the appends of a group, to be made in the same commit.

        Each claim comes with a callback for its outcome: the result of `claims.claim_in_commit`,
        or an exception.
        """
        waiters = self.expecting(group)
        return [(waiter.query, partial(self._arrived, waiter)) for waiter in waiters]

    def _arrived(self, waiter: _WaitingTask, outcome: Any) -> None:
        """Deliver the outcome of a claim made by the commit of other operations."""
        failed = isinstance(outcome, BaseException)
        waiter.hand_over(self.note_outcome(waiter, None if failed else outcome))

    def deliver(self, duties: Sequence[tuple[_WaitingTask, Duty]]) -> None:
        """Deliver duties in the event loop, all in the same turn; called on any thread."""
        if self._loop.is_here():
            super().deliver(duties)
        else:
            self._loop.call_soon(partial(super().deliver, duties))

    async def wait(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None,
        receive: TakesLots | None = None,
    ) -> list[Lot]:
        """Wait in line until the timeout; return [] if `receive` took the messages."""
        if not command.count or self.store.clock.seconds() >= until_s:
            return []
        waiter = _WaitingTask(claims.without_acks(command), self._returns, receive)
        steps = wait_in_line(until_s)
        try:
            step = next(steps)
            with BreakableWait(partial(self._break_off, waiter)):
                self.join(waiter)
                while True:
                    if isinstance(step, LineSleep):
                        step = steps.send(await waiter.sleep(step, self.store.clock))
                    elif step == "watch":
                        step = steps.send(await self._watch(waiter, turns))
                    elif step == "claim":
                        look = self._claim_now(waiter.query, turns and turns.for_looks)
                        step = steps.send(await look)
                    else:
                        step = steps.send(self.report(waiter, step))
        except StopIteration as end:
            return [] if waiter.is_received else end.value
        except BaseException:
            self.report(waiter, Served())
            raise
        finally:
            waiter.leave()

    def _break_off(self, waiter: _WaitingTask) -> None:
        """End a wait; called on any thread."""
        if self._loop.is_here():
            waiter.deliver("broken")
        else:
            self._loop.call_soon(partial(waiter.deliver, "broken"))

    async def _watch(self, waiter: _WaitingTask, turns: ClientTurns | None) -> float | None:
        """Watch the queue; in the event loop if possible, because waking a thread costs more.

        The claim before the watch has read the queue, so the glance mostly needs memory alone. Only an
        engine whose requests take long (`Paced`), or a commit in flight, could hold the loop up.
        """
        if not self.store.is_committing and (self.store.is_fast or not pace_of(self.store.engine)):
            return self.watch(waiter)
        return await self._loop.ask(self.watch, waiter, turns=turns and turns.for_looks)
