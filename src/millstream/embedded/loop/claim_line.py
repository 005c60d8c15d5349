"""Claims of coroutines that wait in line, without a thread each.

If this event loop appends the awaited message, the first claim in line gets it by the same commit.
After any other change of the queue, the first in line looks: if the loop made the commit, the loop
also makes the claim; else the committing thread sets a thread of the session's pool to work, and
the loop wakes only for the answer. Further claims that can be served continue in the loop, all in
the same turn, so that a single commit serves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any

from millstream.command import Command
from millstream.embedded.loop.claim_loop import ClientTurns, Loop, Returns, TakesLots
from millstream.errors import Closed
from millstream.format import keys
from millstream.log.commands import Append
from millstream.queue.commands import ClaimMessages, PutMessages
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot
from millstream.queue.rules.sources import inbox_of
from millstream.queue.service import claims
from millstream.queue.service.lines import Lines
from millstream.store.store import Store

ClaimNow = Callable[[ClaimMessages, ClientTurns | None], Awaitable[tuple[list[Lot], int]]]
"""Makes a claim without waiting; returns the messages and the number that remain."""


class _Waiter:
    """A claim in a line."""

    __slots__ = (
        "command",
        "delivery",
        "end",
        "is_answered",
        "receive",
        "takes",
        "timer",
        "turns",
        "until_s",
    )

    def __init__(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None = None,
        receive: TakesLots | None = None,
    ) -> None:
        self.command = command
        self.receive = receive
        """Receives the messages in the turn of the loop in which they come."""
        self.until_s = until_s
        self.end: asyncio.TimerHandle | None = None
        """The timer for the end of the wait."""
        self.turns = turns
        self.delivery: asyncio.Future[list[Lot] | None] = asyncio.get_running_loop().create_future()
        """The messages that a thread claimed; None if the waiter must claim by itself."""
        self.is_answered = False
        """Whether an answer exists that its task may not have received yet."""
        self.takes = False
        """Whether it was sent to claim and has not reported yet."""
        self.timer: asyncio.TimerHandle | None = None


class WaitingClaims:
    """The waiting claims of a session; belongs to its event loop."""

    def __init__(self, store: Store, loop: Loop, returns: Returns, claim_now: ClaimNow) -> None:
        self._store = store
        self._loop = loop
        self._returns = returns
        self._claim_now = claim_now
        self._lines: Lines[_Waiter] = Lines(store, self._tell)

    def claims_for(
        self, commands: Iterable[Command[Any] | None]
    ) -> list[tuple[ClaimMessages, Callable[[Any], None]]]:
        """Return claims that wait for the appends of these commands, to be made in the same commit.

        Each claim comes with a callback for its outcome: the result of `claims.claim_in_commit`,
        or an exception.
        """
        if not self._lines.expects_any:
            return []
        logs = {keys.log_name(log) for log in map(_appended_to, commands) if log}
        waiters = [waiter for key in logs for waiter in self._lines.expecting(key)]
        return [(waiter.command, partial(self._arrived, waiter)) for waiter in waiters]

    def _arrived(self, waiter: _Waiter, outcome: Any) -> None:
        """Deliver the outcome of a claim made by another commit; without messages the waiter claims
        itself.
        """
        if not isinstance(outcome, tuple) or not outcome[1]:
            self._let_take([waiter])
            return
        granted, lots = outcome
        queue = waiter.command.queue
        claims.note_ahead(self._store, queue, granted)
        waiter.is_answered = True  # even if its timeout comes in this very turn of the loop
        self._hand_over(waiter, waiter.delivery, lots)
        self._lines.served(queue, waiter, granted.remaining)

    def _hand_over(
        self, waiter: _Waiter, delivery: asyncio.Future[list[Lot] | None], lots: list[Lot]
    ) -> None:
        """Deliver messages to a waiter, or give them back if it has left; in the event loop."""
        if delivery.done():
            self._returns.give_back(waiter.command, lots)
        elif waiter.receive is not None and waiter.receive(lots):
            delivery.set_result([])
        else:
            delivery.set_result(lots)

    async def wait(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None,
        receive: TakesLots | None = None,
    ) -> list[Lot]:
        """Wait in line until the timeout; return [] if `receive` took the messages."""
        if not command.count or self._store.clock.seconds() >= until_s:
            return []
        waiter = _Waiter(claims.without_acks(command), until_s, turns, receive)
        self._lines.join(command.queue, waiter, command.count)
        try:
            return await self._claim_in_line(waiter)
        except asyncio.CancelledError:
            self._return_untaken(waiter)
            raise
        finally:
            self._quit(waiter)

    def _return_untaken(self, waiter: _Waiter) -> None:
        """Give back messages that were delivered just before the wait was cancelled."""
        delivery = waiter.delivery
        if delivery.done() and not delivery.cancelled() and delivery.exception() is None:
            self._returns.give_back(waiter.command, delivery.result() or [])

    async def _claim_in_line(self, waiter: _Waiter) -> list[Lot]:
        clock, queue = self._store.clock, waiter.command.queue
        waits = True
        while waits:
            self._set_end(waiter, waiter.until_s - clock.seconds())
            delivered = await waiter.delivery
            if delivered is not None:
                return delivered
            waiter.delivery = asyncio.get_running_loop().create_future()
            lots, remaining = await self._claim_now(waiter.command, waiter.turns)
            waiter.takes = False
            if lots:
                self._lines.served(queue, waiter, remaining)
                return lots
            waits = self._lines.in_vain(queue, waiter)
        return []

    def _set_end(self, waiter: _Waiter, remaining_s: float) -> None:
        """Set the timer for the end of a wait, by the clock of the event loop."""
        if waiter.end is not None:
            waiter.end.cancel()
        waiter.end = asyncio.get_running_loop().call_later(max(0.0, remaining_s), self._end, waiter)

    def _end(self, waiter: _Waiter) -> None:
        """End a wait whose time is over by the store's clock; a looking waiter finishes its look."""
        remaining_s = waiter.until_s - self._store.clock.seconds()
        if waiter.delivery.done():
            return
        if remaining_s > 0:
            self._set_end(waiter, remaining_s)
        elif self._lines.leave(waiter.command.queue, waiter) and not waiter.is_answered:
            waiter.delivery.set_result([])

    def _quit(self, waiter: _Waiter) -> None:
        """Leave the line after any end of the wait, and pass on an assigned claim."""
        waiter.delivery.cancel()
        if waiter.end is not None:
            waiter.end.cancel()
        self._stop_timer(waiter)
        if not self._lines.leave(waiter.command.queue, waiter) and waiter.takes:
            self._lines.served(waiter.command.queue, waiter)

    def _tell(self, duties: Sequence[tuple[_Waiter, Duty]]) -> None:
        """Assign duties to waiters; called on any thread."""
        taking = []
        is_in_loop = self._store.is_fast and self._loop.is_here()
        for waiter, duty in duties:
            if duty == "take":
                taking.append(waiter)
            elif duty == "look" and is_in_loop:
                self._lines.stop_watching(waiter)
                taking.append(waiter)
            elif is_in_loop and not self._store.is_committing:
                self._loop.call_soon(partial(self._watch_here, waiter))
            else:
                self._begin(waiter, self._look if duty == "look" else self._watch)
        if taking:
            self._loop.call_soon(partial(self._let_take, taking))

    def _let_take(self, waiters: list[_Waiter]) -> None:
        """Wake waiters that claim in the loop; their claims are gathered into a single commit."""
        for waiter in waiters:
            if waiter.delivery.done():
                self._lines.served(waiter.command.queue, waiter)  # it was cancelled
            else:
                waiter.takes = True
                waiter.delivery.set_result(None)

    def _begin(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        """Run a duty in a thread of the pool, in a turn of the waiter's client."""
        if waiter.turns is None:
            self._submit(waiter, duty)
        else:
            waiter.turns.begin(partial(self._submit, waiter, duty))

    def _submit(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        try:
            self._loop.submit(partial(self._work, waiter, duty))
        except (
            RuntimeError
        ):  # closed: refuse in the loop, else each waiter would recurse into the next
            self._loop.call_soon(partial(self._work, waiter, _refuse))

    def _work(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        """Run a duty, mostly in a thread of the pool; an error becomes the waiter's answer."""
        try:
            duty(waiter)
        except BaseException as error:
            self._fail(waiter, error)
        finally:
            self._end_turn(waiter)

    def _look(self, waiter: _Waiter) -> None:
        queue = waiter.command.queue
        self._lines.stop_watching(waiter)
        if waiter.delivery.done():
            self._lines.served(queue, waiter)  # it has left: the next in line looks
            return
        lots, remaining = claims.claim_now(self._store, waiter.command)
        if lots:
            self._answer(waiter, lots)
            self._lines.served(queue, waiter, remaining)
        elif not self._lines.in_vain(queue, waiter):
            self._answer(waiter, lots)

    def _watch_here(self, waiter: _Waiter) -> None:
        """Watch from the event loop, because waking a thread costs more than a glance at memory."""
        try:
            self._watch(waiter)
        except Exception as error:
            self._fail(waiter, error)

    def _watch(self, waiter: _Waiter) -> None:
        queue = waiter.command.queue
        change_s = self._lines.watch(queue, waiter)
        if change_s == 0:
            self._lines.change(queue)
        elif change_s is not None and isfinite(change_s):
            self._loop.call_soon(partial(self._set_timer, waiter, change_s))

    def _set_timer(self, waiter: _Waiter, change_s: float) -> None:
        """Look when a message becomes due, if this waiter is still the watcher."""
        self._stop_timer(waiter)
        if self._lines.is_watching(waiter):
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(change_s, self._time_is_up, waiter)

    def _time_is_up(self, waiter: _Waiter) -> None:
        if self._lines.is_watching(waiter):
            self._lines.change(waiter.command.queue)

    def _stop_timer(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None

    def _answer(self, waiter: _Waiter, lots: list[Lot]) -> None:
        delivery, waiter.is_answered = waiter.delivery, True
        self._loop.call_soon(partial(self._hand_over, waiter, delivery, lots))

    def _fail(self, waiter: _Waiter, error: BaseException) -> None:
        """Deliver an error to a waiter; the next in line looks by itself."""
        delivery, waiter.is_answered = waiter.delivery, True
        self._loop.call_soon(lambda: None if delivery.done() else delivery.set_exception(error))
        self._lines.stop_watching(waiter)
        self._lines.served(waiter.command.queue, waiter)

    def _end_turn(self, waiter: _Waiter) -> None:
        if waiter.turns is not None:
            waiter.turns.end()


def _appended_to(command: Command[Any] | None) -> str:
    """Return the log to which a command appends claimable records; "" for other commands."""
    if isinstance(command, Append):
        return command.log
    if isinstance(command, PutMessages) and not command.is_for_later:
        return inbox_of(command.queue)
    return ""


def _refuse(waiter: _Waiter) -> None:
    raise Closed("the store was closed")
