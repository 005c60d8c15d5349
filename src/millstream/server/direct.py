"""The taskless road: commands that one commit answers, carried out without a coroutine of their own.

Most requests append, claim or acknowledge a few messages. To make a task for each, and to wake it,
costs much: with a task each, appends of 32 coroutines over the socket take 31 % more processor time,
client included (2026-11). A command is admitted and settled here as everywhere, by
`admission`; the answer is handed to a callback by the commit that has it. Where something would have
to be waited for first, nothing is done, and the caller takes the road of `Core.execute`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.command import Command
from millstream.embedded.loop import session
from millstream.errors import MillstreamError
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.message import Lot
from millstream.server.admission import Call
from millstream.server.auth.access import Principal
from millstream.server.claim_counts import ClaimCounts

if TYPE_CHECKING:
    from millstream.server.core import Core

Done = Callable[[Any], object]
"""Is told an answer, an exception in its place, or the task that will have the answer."""

KINDS = frozenset({*session.DIRECT, ClaimMessages})
"""Commands that may be answered without a task. These commands write. So a leading node needs no proof
that it still leads: the commit is the proof."""


def begin(
    core: Core,
    principal: Principal,
    command: Command[Any],
    holdings: ClaimCounts | None,
    done: Done,
    *,
    traceparent: str | None = None,
) -> bool:
    """Begin a command; return False, with nothing done, if it takes more than a commit.

    A refusal is told at once, before `begin` returns. Must be called in the event loop.
    On a node of a cluster the command may end with `NotLeader`, and nothing was done then.
    """
    if type(command) not in KINDS or not core.admission.is_ready(principal):
        return False
    if core.seat is not None and not core.seat.leads:
        return False
    try:
        call = core.admission.admit(principal, command, holdings, traceparent=traceparent)
    except Exception as error:
        done(error)
        return True
    return _TasklessCall(core, call, done).begin()


class _TasklessCall:
    """An admitted command that waits for its commit, without a task."""

    __slots__ = ("_call", "_core", "_done", "_is_told")

    def __init__(self, core: Core, call: Call[Any], done: Done) -> None:
        self._core = core
        self._call = call
        self._done = done
        self._is_told = False
        """Whether the answer was given before the task that goes on with the command is over."""

    def begin(self) -> bool:
        """Hand the command to the session; return False if the session does not take it."""
        call = self._call
        try:
            is_begun = self._core.session.begin_direct(
                call.command, self._answered, call.turns, self._tell_at_once
            )
        except Exception as error:
            self._tell(error)
            return True
        if not is_begun:
            call.cancel()
        return is_begun

    def _tell(self, answer: Any) -> None:
        """Give the answer, or the exception in its place."""
        self._call.settle(answer)
        self._done(answer)

    def _tell_at_once(self, lots: list[Lot]) -> bool:
        """Give messages that a claim has waited for; False if its token must be looked up first."""
        if self._call.must_confirm:
            if not self._core.admission.is_ready(self._call.principal):
                return False
            try:
                self._call.confirm()
            except MillstreamError:
                return False  # the task is told why, and returns the messages
        self._is_told = True
        self._tell(lots)
        return True

    def _answered(self, answer: Any) -> None:
        """Take the session's answer, an exception, or a task that will have the answer."""
        if not self._call.must_confirm:
            if isinstance(answer, asyncio.Task):
                answer.add_done_callback(self._ended)  # before the caller's own
                self._done(answer)
            else:
                self._tell(answer)
            return
        task = asyncio.get_running_loop().create_task(self._confirmed(answer))
        task.add_done_callback(partial(self._over, answer))
        self._done(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Settle the call: a task that went on with the command is over."""
        if self._is_told:
            return
        if task.cancelled():
            self._call.cancel()
        else:
            self._call.settle(task.exception() or task.result())

    def _over(self, answer: Any, task: asyncio.Task[Any]) -> None:
        """Return the claims of a task that was cancelled: it may never have begun."""
        self._call.cancel()
        if self._is_told or not task.cancelled():
            return
        if isinstance(answer, asyncio.Task):
            if not answer.done():
                answer.cancel()
                return
            answer = None if answer.cancelled() or answer.exception() else answer.result()
        self._return_claims(answer)

    def _return_claims(self, answer: Any) -> None:
        """Give back what was claimed for a client that has left, or may not have it any more."""
        call = self._call
        self._core.return_claims(call.principal, call.command, answer, call.holdings)

    async def _confirmed(self, answer: Any) -> Any:
        """Return the answer of a command that has waited, once its rights are checked again."""
        call = self._call
        try:
            if isinstance(answer, asyncio.Task):
                answer = await answer
            if self._is_told:
                return answer
            if not isinstance(answer, BaseException):
                await self._core.tokens.freshen_for(call.principal)
                call.confirm()
        except Exception as error:
            self._return_claims(answer)
            answer = error
        call.settle(answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer
