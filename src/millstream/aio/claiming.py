"""Claims of coroutines: made in the loop's own commits where they can, and waiting in lines.

A claim that waits holds no thread. If what it waits for is appended by this event loop, the first in
line gets it by the same commit. When the queue changes otherwise, the first in line looks at once. If the
event loop made the commit that changed it, the loop makes the claim as well, right behind. Else a
thread of the session's pool is set to work by the thread that commits, and the event loop is not
woken before there is an answer. The others that can get something too go on in the loop, all in
one turn of it, so that one commit serves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from millstream.command import Command, Operation
from millstream.errors import Closed
from millstream.format import keys
from millstream.log.commands import Append
from millstream.queue.commands import ClaimMessages, ClaimRouted, Granted, PutMessages
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot
from millstream.queue.rules.sources import inbox_of
from millstream.queue.service import consuming
from millstream.queue.service.reading import are_at_hand, read_grants
from millstream.queue.service.waiting import Lines
from millstream.store.store import Store

T = TypeVar("T")

READ_HERE = 16
"""Messages that came a moment ago, and are read by the event loop itself."""


class ClientTurns(Protocol):
    """How many queries of one client may run at once: each look at a queue is one of them."""

    def begin(self, start: Callable[[], None]) -> None:
        """Call `start` once there is a turn, perhaps on another thread; before who waits longer."""

    def end(self) -> None:
        """Give a turn back; from any thread."""

    async def __aenter__(self) -> None:
        """Wait for a turn."""

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""


class Loop(Protocol):
    """What claims need of the session whose event loop they run in."""

    async def commit(self, command: Operation[T]) -> T:
        """Carry out an operation together with all others of this turn of the loop."""

    def commit_soon(self, command: Operation[Any], done: Callable[[Any], object]) -> None:
        """The same, without a coroutine: `done` is told the answer, or an exception."""

    async def ask(
        self, question: Callable[..., T], *arguments: Any, turns: ClientTurns | None = None
    ) -> T:
        """Have a thread of the pool answer, in one of the client's turns if it has such."""

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread of the pool work; from any thread. RuntimeError if it was shut down."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the event loop; from any thread."""

    def is_here(self) -> bool:
        """Whether the event loop itself is calling."""


class _Waiter:
    """One claim in a line."""

    __slots__ = ("command", "is_answered", "takes", "timer", "told", "turns")

    def __init__(self, command: ClaimMessages, turns: ClientTurns | None) -> None:
        self.command = command
        self.turns = turns
        self.told: asyncio.Future[list[Lot] | None] = asyncio.get_running_loop().create_future()
        """What a thread has found for it; None if it is to take messages itself."""
        self.is_answered = False
        """Whether there is an answer for it, which its task may not know yet."""
        self.takes = False
        """Whether it was told so, and has not reported yet."""
        self.timer: asyncio.TimerHandle | None = None


class Claims:
    """The claims of one session; belongs to its event loop."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self._lines: Lines[_Waiter] = Lines(store, self._tell)

    async def claim(self, command: ClaimMessages, turns: ClientTurns | None = None) -> list[Lot]:
        """As `waiting.claim_messages`, without a thread while it waits.

        With `turns`, each look at the queue counts as one of the client's queries.
        """
        until_s = self._until_s(command)
        found, _ = await self._claim_now(command, turns)
        return found or await self._wait(command, until_s, turns)

    def begin(
        self, command: ClaimMessages, done: Callable[[Any], object], turns: ClientTurns | None
    ) -> bool:
        """As `claim`, without a coroutine; False, and nothing done, if messages must be looked for.

        `done` is told the messages, an exception, or the task that goes on with the claim.
        """
        until_s = self._until_s(command)
        routed, is_close = self._routed(command)
        if routed is None:
            return False

        def claimed(granted: Any) -> None:
            if isinstance(granted, BaseException):
                done(granted)
                return
            try:
                found = self._read_here(command, granted, is_close=is_close)
            except Exception as error:
                done(error)
                return
            waits = command.wait_ms and command.count
            if found or (found is not None and not granted.grants and not waits):
                done(found)
                return
            going_on = self._go_on(command, (granted, is_close), found, until_s, turns)
            done(asyncio.get_running_loop().create_task(going_on))

        self._loop.commit_soon(routed, claimed)
        return True

    def arriving(
        self, commands: Iterable[Command[Any] | None]
    ) -> list[tuple[ClaimMessages, Callable[[Any], None]]]:
        """Claims that wait for what these commands append, to be made in the same commit.

        Each with what is told its outcome: as of `consuming.claim_arriving`, or an exception.
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
        if not waiter.told.done():
            waiter.told.set_result(found)
        self._lines.served(queue, waiter, granted.left)

    async def _go_on(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        found: list[Lot] | None,
        until_s: float,
        turns: ClientTurns | None,
    ) -> list[Lot]:
        """Go on with a claim that has got less than it wants, or nothing that is at hand."""
        found, _ = await self._claim_rest(command, got, found, turns)
        return found or await self._wait(command, until_s, turns)

    def _until_s(self, command: ClaimMessages) -> float:
        return self._store.clock.seconds() + (command.wait_ms or 0) / 1000

    async def _wait(
        self, command: ClaimMessages, until_s: float, turns: ClientTurns | None
    ) -> list[Lot]:
        """Stand in line, if there is time left."""
        if not command.count or self._store.clock.seconds() >= until_s:
            return []
        waiter = _Waiter(consuming.without_acks(command), turns)
        self._lines.join(command.queue, waiter, command.count)
        try:
            return await self._claim_in_line(waiter, until_s)
        finally:
            self._quit(waiter)

    async def _claim_in_line(self, waiter: _Waiter, until_s: float) -> list[Lot]:
        clock, queue = self._store.clock, waiter.command.queue
        waits = True
        while waits:
            try:
                async with asyncio.timeout(until_s - clock.seconds()):
                    found = await asyncio.shield(waiter.told)
            except TimeoutError:
                if clock.seconds() < until_s:
                    continue
                if self._lines.leave(queue, waiter) and not waiter.is_answered:
                    return []
                found = await waiter.told  # it looks, or has found something, just now
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

    def _quit(self, waiter: _Waiter) -> None:
        """Whatever ended the wait: leave, and pass on what was to be done."""
        waiter.told.cancel()
        self._stop_timer(waiter)
        if not self._lines.leave(waiter.command.queue, waiter) and waiter.takes:
            self._lines.served(waiter.command.queue, waiter)

    async def _claim_now(
        self, command: ClaimMessages, turns: ClientTurns | None
    ) -> tuple[list[Lot], int]:
        """As `consuming.claim_now`; what is known to be routed is claimed by the loop's own commits."""
        routed, is_close = self._routed(command)
        if routed is None:
            return await self._loop.ask(consuming.claim_now, self._store, command, turns=turns)
        granted = await self._loop.commit(routed)
        found = self._read_here(command, granted, is_close=is_close)
        if found:
            return found, granted.left
        return await self._claim_rest(command, (granted, is_close), found, turns)

    def _routed(self, command: ClaimMessages) -> tuple[ClaimRouted | None, bool]:
        """The claim of what need not be looked for, if it is that; and whether it came just now."""
        store = self._store
        routed = consuming.claim_ahead(store, command) or consuming.claim_level(store, command)
        if routed is None and store.is_fast and not store.is_committing:
            routed = consuming.claim_close(store, command)
            return routed, routed is not None
        return routed, False

    def _read_here(
        self, command: ClaimMessages, granted: Granted, *, is_close: bool
    ) -> list[Lot] | None:
        """The messages that a claim got, if it got enough, and they are at hand; else None."""
        store, grants = self._store, granted.grants
        consuming.note_ahead(store, command.queue, granted)
        if _is_short(command, granted, is_close=is_close):
            return None
        is_recent = granted.is_level or (is_close and not granted.is_overtaken)
        is_little = is_recent and 0 < granted.count <= READ_HERE
        if is_little or are_at_hand(store, grants):
            return read_grants(store, command.queue, grants)
        return None

    async def _claim_rest(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        found: list[Lot] | None,
        turns: ClientTurns | None,
    ) -> tuple[list[Lot], int]:
        """What a claim got that could not be read at once, and what it has to look for yet."""
        (granted, is_close), store = got, self._store
        grants = granted.grants
        if found is None and _is_short(command, granted, is_close=is_close):
            consuming.forget_level(store, command.queue)
            rest = replace(command, acked=[], count=command.count - granted.count)
            return await self._loop.ask(consuming.claim_now, store, rest, grants, turns=turns)
        if found is None:
            found = await self._loop.ask(read_grants, store, command.queue, grants, turns=turns)
        if found or not grants:
            return found, granted.left
        rest = consuming.without_acks(command)  # all of these were damaged, and have failed
        return await self._loop.ask(consuming.claim_now, store, rest, turns=turns)

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
        self._loop.call_soon(lambda: None if told.done() else told.set_result(found))

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


def _is_short(command: ClaimMessages, granted: Granted, *, is_close: bool) -> bool:
    """Whether a claim has to look for more: others were faster than it."""
    if command.count <= granted.count or granted.ahead or granted.is_level:
        return False
    return not (is_close and granted.grants and not granted.is_overtaken)


def _refuse(waiter: _Waiter) -> None:
    raise Closed("the store was closed")
