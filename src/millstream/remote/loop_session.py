"""The remote session for coroutines: executes commands on a server."""

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
from millstream.remote.loop_client import LoopClient, LoopRequest
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of
from millstream.remote.waits import pieces_of

T = TypeVar("T")


async def _answer(client: LoopClient, command: Command[Any]) -> Raw:
    """Return the answer to a request; return the messages of a cancelled claim to the queue."""
    request = LoopRequest(command)
    client.ask(request)
    try:
        return await request.future
    except asyncio.CancelledError:
        if isinstance(command, ClaimMessages) and not command.pop:
            request.refuse(partial(_give_back, client, command))
        raise


def _give_back(client: LoopClient, command: ClaimMessages, answer: Raw) -> None:
    """Return claimed messages that reached no consumer, before their lease ends."""
    lots: list[Lot] = result_of(command, answer)
    runs = lots_claimed(lots)
    if runs:
        request = LoopRequest(ReturnClaims(command.queue, runs))
        request.future.add_done_callback(asyncio.Future.exception)  # no caller waits for the answer
        client.give_back(request)


async def wait_for(client: LoopClient, command: Command[T]) -> T:
    """Return the answer to a waiting command, after as many requests as needed."""
    pieces = pieces_of(command, client.wait_ms, client.retry_for_s)
    step = next(pieces)
    try:
        while True:
            if isinstance(step, float):
                await asyncio.sleep(step)
                step = next(pieces)
                continue
            try:
                answer = await _answer(client, step)
            except Interrupted as error:
                step = pieces.throw(error)
            else:
                step = pieces.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class AsyncRemoteSession:
    """Executes the commands of coroutines in the event loop that opened it."""

    def __init__(self, client: LoopClient) -> None:
        self.limits = client.hello.limits
        self.clock: Clock = SystemClock()
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"AsyncRemoteSession({self._client.address.shown!r})"

    @property
    def transport(self) -> str:
        """Return the transport of frames: `frames` on a bare connection, or `websocket`."""
        return self._client.transport

    async def execute(self, command: Command[T]) -> T:
        """Execute a command; its writes are durable on return.

        If the caller is cancelled, the command may still be executed. Other callers are not
        affected, and claimed messages are returned.
        """
        self._check_home()
        if waits(command):
            return await wait_for(self._client, command)
        return result_of(command, await _answer(self._client, command))

    async def close(self) -> None:
        """Close the connection; waiting callers get `Closed`."""
        if os.getpid() == self._pid:
            await self._client.close()

    def _check_home(self) -> None:
        if os.getpid() != self._pid:
            raise CannotOpen(
                "this connection belongs to the process that forked; open one in the child",
                path=self._client.address.shown,
            )
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a connection that was opened in one event loop is used in another")
