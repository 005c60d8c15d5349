"""Direct calls: commands that one commit answers, carried out without a coroutine of their own.

Most requests append, claim or acknowledge a few messages. Everything that `Core.execute` asks of a
request is asked of these as well, in the same order; but nothing is waited for in between, so no
task has to be made and woken. Where something would have to be waited for, nothing is done, and the
caller takes the other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.command import Command, waits
from millstream.errors import MillstreamError
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.message import Lot
from millstream.server.auth.access import Principal
from millstream.server.claim_counts import Holdings

if TYPE_CHECKING:
    from millstream.server.core import Core

Done = Callable[[Any], object]
"""Is told an answer, an exception in its place, or the task that will have it."""


def begin(
    core: Core,
    principal: Principal,
    command: Command[Any],
    holdings: Holdings,
    done: Done,
    *,
    traceparent: str | None = None,
) -> bool:
    """Begin a command; False, and nothing done, if it takes more than a commit.

    It may be refused at once: `done` is then called before this returns. Called in the event loop.
    """
    confirmed = core.tokens.confirm_now(principal)
    if confirmed is None:
        return False
    call = _Call(core, confirmed, command, holdings, done)
    try:
        call.reserve(core.admitted(confirmed, command, traceparent))
        is_begun = call.begin()
    except Exception as error:
        call.tell(error)
        return True
    if not is_begun:
        call.give_back()
    return is_begun


class _Call:
    """One command on its way, and what is held for it meanwhile."""

    __slots__ = (
        "_began_s",
        "_command",
        "_core",
        "_done",
        "_holdings",
        "_is_counted",
        "_is_told",
        "_principal",
        "_reserved",
        "_waits",
    )

    def __init__(
        self,
        core: Core,
        principal: Principal,
        command: Command[Any],
        holdings: Holdings,
        done: Done,
    ) -> None:
        self._core = core
        self._principal = principal
        self._command = command
        self._holdings = holdings
        self._done = done
        self._waits = command.traits.waits is not None and waits(command)
        self._is_counted = False
        """Whether it counts among the requests of its token."""
        self._is_told = False
        """Whether its answer was given before the task that goes on with it is over."""
        self._reserved: ClaimMessages | None = None
        """The claim that there is room for."""
        self._began_s = core.store.clock.seconds()

    def reserve(self, command: Command[Any]) -> None:
        """Hold what it needs: a place among the requests of its token, room for what it claims."""
        if self._principal.token and not self._waits:
            self._core.quota.requests.take(self._principal)
            self._is_counted = True
        if isinstance(command, ClaimMessages):
            command = self._reserved = self._holdings.reserve(command, self._core.now_ms)
        self._command = command

    def begin(self) -> bool:
        """Hand it to the session, if that takes it."""
        turns = self._core.quota.turns(self._principal) if self._principal.token else None
        return self._core.session.begin_direct(
            self._command, self._answered, turns, self._tell_at_once
        )

    def give_back(self) -> None:
        """Hold nothing any more; a second call does nothing."""
        if self._is_counted:
            self._is_counted = False
            self._core.quota.requests.give(self._principal)
        if self._reserved is not None:
            self._holdings.release(self._reserved)
            self._reserved = None

    def tell(self, found: Any) -> None:
        """Give the answer, or the exception in its place."""
        self._note(found)
        self._done(found)

    def _tell_at_once(self, found: list[Lot]) -> bool:
        """Give messages that a claim has waited for; False if its rights must be looked up first."""
        if self._principal.token:
            confirmed = self._core.tokens.confirm_now(self._principal)
            try:
                if confirmed is None:
                    return False
                confirmed.check(self._command)
            except MillstreamError:
                return False  # the task is told why, and gives them back
        self._is_told = True
        self.tell(found)
        return True

    def _note(self, found: Any) -> None:
        """Count an answer, and what was claimed by it."""
        if self._is_counted or self._reserved is not None:
            self.give_back()
        kind, core = type(self._command), self._core
        if isinstance(found, Exception):
            core.meter.failed(kind, found)
        elif not isinstance(found, BaseException):
            if self._command.traits.holds:
                self._holdings.note(self._command, found)
            core.meter.answered(kind, core.store.clock.seconds() - self._began_s)

    def _answered(self, found: Any) -> None:
        """The session has the answer, or an exception; or a task that will have it."""
        if not (self._waits and self._principal.token):
            if isinstance(found, asyncio.Task):
                found.add_done_callback(self._ended)  # before the caller's own
                self._done(found)
            else:
                self.tell(found)
            return
        task = asyncio.get_running_loop().create_task(self._await(found))
        task.add_done_callback(partial(self._over, found))
        self._done(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """A task that went on with the command is over."""
        if self._is_told:
            return
        if task.cancelled():
            self.give_back()
        else:
            self._note(task.exception() or task.result())

    def _over(self, found: Any, task: asyncio.Task[Any]) -> None:
        """Hold nothing any more; a task that was cancelled may never have begun."""
        self.give_back()
        if self._is_told or not task.cancelled():
            return
        if isinstance(found, asyncio.Task):
            if not found.done():
                found.cancel()
                return
            found = None if found.cancelled() or found.exception() else found.result()
        self.return_claims(found)

    def return_claims(self, found: Any) -> None:
        """The client has left: what was claimed for it goes back."""
        self._core.return_claims(self._principal, self._command, found, self._holdings)

    async def _await(self, found: Any) -> Any:
        """The answer, once it is there; a claim may have waited for long, and rights be narrower."""
        try:
            if isinstance(found, asyncio.Task):
                found = await found
            if self._is_told:
                return found
            if self._waits and not isinstance(found, BaseException):
                (await self._core.tokens.confirm(self._principal)).check(self._command)
        except Exception as error:
            self.return_claims(found)
            found = error
        self._note(found)
        if isinstance(found, BaseException):
            raise found
        return found
