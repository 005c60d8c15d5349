"""The remote session for coroutines: answers commands from a server."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any, TypeVar

from msgspec import Raw

from millstream.clock import Clock, SystemClock
from millstream.command import Command, waits
from millstream.errors import CannotOpen
from millstream.queue.commands import ClaimMessages, ReturnClaims
from millstream.queue.model.message import Lot
from millstream.queue.runs import lots_claimed
from millstream.remote.loop_client import Link, LoopRequest
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of
from millstream.remote.waiting import pieces_of

T = TypeVar("T")


async def _answer(link: Link, command: Command[Any]) -> Raw:
    """The answer to one request; what a claim gets whose caller is cancelled meanwhile goes back."""
    request = LoopRequest(command)
    link.ask(request)
    try:
        return await request.future
    except asyncio.CancelledError:
        if isinstance(command, ClaimMessages) and not command.pop:
            request.refuse(partial(_give_back, link, command))
        raise


def _give_back(link: Link, command: ClaimMessages, answer: Raw) -> None:
    """Have messages claimed by others that reached no consumer; else they come when their lease ends."""
    found: list[Lot] = result_of(command, answer)
    runs = lots_claimed(found)
    if runs and link.is_open:
        request = LoopRequest(ReturnClaims(command.queue, runs))
        request.future.add_done_callback(asyncio.Future.exception)  # no caller hears of it
        link.ask(request)


async def wait_for(link: Link, command: Command[T]) -> T:
    """The answer to a command that waits, after as many requests as it takes."""
    pieces = pieces_of(command, link.wait_ms, link.retry_for_s)
    step = next(pieces)
    try:
        while True:
            if isinstance(step, float):
                await asyncio.sleep(step)
                step = next(pieces)
                continue
            try:
                answer = await _answer(link, step)
            except Interrupted as error:
                step = pieces.throw(error)
            else:
                step = pieces.send(answer)
    except StopIteration as end:
        found: T = end.value
        return found


class AsyncRemoteSession:
    """Answers the coroutines of one event loop: the one that it was opened in."""

    def __init__(self, link: Link) -> None:
        self.limits = link.hello.limits
        self.clock: Clock = SystemClock()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"AsyncRemoteSession({self._link.address.shown!r})"

    @property
    def transport(self) -> str:
        """How frames travel: `frames` on a bare connection, or `websocket`."""
        return self._link.transport

    async def execute(self, command: Command[T]) -> T:
        """Answer a command; what it writes is durable then.

        If the caller is cancelled, it may still be carried out; other callers notice nothing, and
        what was claimed for it goes back.
        """
        self._check_home()
        if waits(command):
            return await wait_for(self._link, command)
        return result_of(command, await _answer(self._link, command))

    async def close(self) -> None:
        """Hang up; callers that still wait get `Closed`."""
        if os.getpid() == self._pid:
            await self._link.close()

    def _check_home(self) -> None:
        if os.getpid() != self._pid:
            raise CannotOpen(
                "this connection belongs to the process that forked; open one in the child",
                path=self._link.address.shown,
            )
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a connection that was opened in one event loop is used in another")
