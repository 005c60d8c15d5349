"""Claims of coroutines that stand in line: they hold no thread while they wait.

If what a claim waits for is appended by this event loop, the first in line gets it by the same commit.
When the queue changes otherwise, the first in line looks at once. If the event loop made the commit that
changed it, the loop makes the claim as well, right behind. Else a thread of the session's pool is set to
work by the thread that commits, and the event loop is not woken before there is an answer. The others
that can get something too go on in the loop, all in one turn of it, so that one commit serves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any

from millstream.command import Command
from millstream.embedded.loop.claim_loop import ClientTurns, Loop, TakesLots
from millstream.embedded.loop.returned_claims import Returns
from millstream.errors import Closed
from millstream.format import keys
from millstream.log.commands import Append
from millstream.queue.commands import ClaimMessages, PutMessages
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot
from millstream.queue.rules.sources import inbox_of
from millstream.queue.service import consuming
from millstream.queue.service.waiting import Lines
from millstream.store.store import Store

ClaimNow = Callable[[ClaimMessages, ClientTurns | None], Awaitable[tuple[list[Lot], int]]]
"""Makes a claim without waiting; and how many messages are left."""


class _Waiter:
    """One claim in a line."""

    __slots__ = (
        "at_once",
        "command",
        "end",
        "is_answered",
        "takes",
        "timer",
        "told",
        "turns",
        "until_s",
    )

    def __init__(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None = None,
        at_once: TakesLots | None = None,
    ) -> None:
        self.command = command
        self.at_once = at_once
        """Takes its messages in the very turn of the loop in which they come."""
        self.until_s = until_s
        self.end: asyncio.TimerHandle | None = None
        """When its time is up."""
        self.turns = turns
        self.told: asyncio.Future[list[Lot] | None] = asyncio.get_running_loop().create_future()
        """What a thread has found for it; None if it is to take messages itself."""
        self.is_answered = False
        """Whether there is an answer for it, which its task may not know yet."""
        self.takes = False
        """Whether it was told so, and has not reported yet."""
        self.timer: asyncio.TimerHandle | None = None


class StandingClaims:
    """The claims of one session that wait; belongs to its event loop."""

    def __init__(self, store: Store, loop: Loop, returns: Returns, claim_now: ClaimNow) -> None:
        self._store = store
        self._loop = loop
        self._returns = returns
        self._claim_now = claim_now
        self._lines: Lines[_Waiter] = Lines(store, self._tell)

    def arriving(
        self, commands: Iterable[Command[Any] | None]
    ) -> list[tuple[ClaimMessages, Callable[[Any], None]]]:
        """Claims that wait for what these commands append, to be made in the same commit.

        Each with what is told its outcome: as of `consuming.claim_in_commit`, or an exception.
        """
        if not self._lines.expects_any:
            return []
        logs = {keys.log_name(log) for log in map(_appended_to, commands) if log}
        waiters = [waiter for key in logs for waiter in self._lines.expecting(key)]
        return [(waiter.command, partial(self._arrived, waiter)) for waiter in waiters]

    def _arrived(self, waiter: _Waiter, outcome: Any) -> None:
        """A claim was made by the commit that brought its messages; else its waiter takes some."""
        if not isinstance(outcome, tuple) or not outcome[1]:
            self._let_take([waiter])
            return
        granted, found = outcome
        queue = waiter.command.queue
        consuming.note_ahead(self._store, queue, granted)
        waiter.is_answered = True  # also if its time is up in this very turn of the loop
        self._hand_over(waiter, waiter.told, found)
        self._lines.served(queue, waiter, granted.remaining)

    def _hand_over(
        self, waiter: _Waiter, told: asyncio.Future[list[Lot] | None], found: list[Lot]
    ) -> None:
        """Give a waiter its messages, unless it has left; in the event loop."""
        if told.done():
            self._returns.give_back(waiter.command, found)
        elif waiter.at_once is not None and waiter.at_once(found):
            told.set_result([])
        else:
            told.set_result(found)

    async def wait(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None,
        at_once: TakesLots | None = None,
    ) -> list[Lot]:
        """Stand in line, if there is time left; nothing is answered if `at_once` took it."""
        if not command.count or self._store.clock.seconds() >= until_s:
            return []
        waiter = _Waiter(consuming.without_acks(command), until_s, turns, at_once)
        self._lines.join(command.queue, waiter, command.count)
        try:
            return await self._claim_in_line(waiter)
        except asyncio.CancelledError:
            self._return_untaken(waiter)
            raise
        finally:
            self._quit(waiter)

    def _return_untaken(self, waiter: _Waiter) -> None:
        """Its messages were handed over, but the wait was cancelled before it could take them."""
        told = waiter.told
        if told.done() and not told.cancelled() and told.exception() is None:
            self._returns.give_back(waiter.command, told.result() or [])

    async def _claim_in_line(self, waiter: _Waiter) -> list[Lot]:
        clock, queue = self._store.clock, waiter.command.queue
        waits = True
        while waits:
            self._set_end(waiter, waiter.until_s - clock.seconds())
            found = await waiter.told
            if found is not None:
                return found
            waiter.told = asyncio.get_running_loop().create_future()
            taken, left = await self._claim_now(waiter.command, waiter.turns)
            waiter.takes = False
            if taken:
                self._lines.served(queue, waiter, left)
                return taken
            waits = self._lines.in_vain(queue, waiter)
        return []

    def _set_end(self, waiter: _Waiter, left_s: float) -> None:
        """Have a waiter leave after so long, by the clock of the event loop."""
        if waiter.end is not None:
            waiter.end.cancel()
        waiter.end = asyncio.get_running_loop().call_later(max(0.0, left_s), self._end, waiter)

    def _end(self, waiter: _Waiter) -> None:
        """A waiter's time is up, if the store's clock says so too; one that looks, looks on."""
        left_s = waiter.until_s - self._store.clock.seconds()
        if waiter.told.done():
            return
        if left_s > 0:
            self._set_end(waiter, left_s)
        elif self._lines.leave(waiter.command.queue, waiter) and not waiter.is_answered:
            waiter.told.set_result([])

    def _quit(self, waiter: _Waiter) -> None:
        """Whatever ended the wait: leave, and pass on what was to be done."""
        waiter.told.cancel()
        if waiter.end is not None:
            waiter.end.cancel()
        self._stop_timer(waiter)
        if not self._lines.leave(waiter.command.queue, waiter) and waiter.takes:
            self._lines.served(waiter.command.queue, waiter)

    # Duties in a line.

    def _tell(self, duties: Sequence[tuple[_Waiter, Duty]]) -> None:
        """Have waiters do something; called on any thread."""
        taking = []
        here = self._store.is_fast and self._loop.is_here()
        for waiter, duty in duties:
            if duty == "take":
                taking.append(waiter)
            elif duty == "look" and here:
                self._lines.stop_watching(waiter)
                taking.append(waiter)
            elif here and not self._store.is_committing:
                self._loop.call_soon(partial(self._watch_here, waiter))
            else:
                self._begin(waiter, self._look if duty == "look" else self._watch)
        if taking:
            self._loop.call_soon(partial(self._let_take, taking))

    def _let_take(self, waiters: list[_Waiter]) -> None:
        """Wake waiters that go on in the loop: what they claim is gathered into one commit."""
        for waiter in waiters:
            if waiter.told.done():
                self._lines.served(waiter.command.queue, waiter)  # it was cancelled
            else:
                waiter.takes = True
                waiter.told.set_result(None)

    def _begin(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        """Have a thread of the pool do it, in one of the turns of the waiter's client."""
        if waiter.turns is None:
            self._submit(waiter, duty)
        else:
            waiter.turns.begin(partial(self._submit, waiter, duty))

    def _submit(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        try:
            self._loop.submit(partial(self._work, waiter, duty))
        except RuntimeError:  # in the loop: here each that waits would be told by the one before
            self._loop.call_soon(partial(self._work, waiter, _refuse))

    def _work(self, waiter: _Waiter, duty: Callable[[_Waiter], None]) -> None:
        """Do a duty, as a rule in a thread of the pool; what fails is the waiter's answer."""
        try:
            duty(waiter)
        except BaseException as error:
            self._fail(waiter, error)
        finally:
            self._end_turn(waiter)

    def _look(self, waiter: _Waiter) -> None:
        queue = waiter.command.queue
        self._lines.stop_watching(waiter)
        if waiter.told.done():
            self._lines.served(queue, waiter)  # it waits no more: the next in line looks
            return
        found, left = consuming.claim_now(self._store, waiter.command)
        if found:
            self._answer(waiter, found)
            self._lines.served(queue, waiter, left)
        elif not self._lines.in_vain(queue, waiter):
            self._answer(waiter, found)

    def _watch_here(self, waiter: _Waiter) -> None:
        """Watch from the event loop: a thread would have to be woken for a glance at memory."""
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
        """Look when time alone may bring a message, if it is still up to this waiter."""
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

    def _answer(self, waiter: _Waiter, found: list[Lot]) -> None:
        told, waiter.is_answered = waiter.told, True
        self._loop.call_soon(partial(self._hand_over, waiter, told, found))

    def _fail(self, waiter: _Waiter, error: BaseException) -> None:
        """Tell one waiter what went wrong; the next in line finds out by itself."""
        told, waiter.is_answered = waiter.told, True
        self._loop.call_soon(lambda: None if told.done() else told.set_exception(error))
        self._lines.stop_watching(waiter)
        self._lines.served(waiter.command.queue, waiter)

    def _end_turn(self, waiter: _Waiter) -> None:
        if waiter.turns is not None:
            waiter.turns.end()


def _appended_to(command: Command[Any] | None) -> str:
    """The log to whose end a command adds something that can be claimed at once; else nothing."""
    if isinstance(command, Append):
        return command.log
    if isinstance(command, PutMessages) and not command.is_for_later:
        return inbox_of(command.queue)
    return ""


def _refuse(waiter: _Waiter) -> None:
    raise Closed("the store was closed")
