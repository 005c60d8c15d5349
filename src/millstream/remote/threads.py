"""The remote session for threads: one background thread keeps the link for all of them.

A caller encodes its command, hands it over and sleeps until its answer is there, which it decodes
itself. What many threads ask for meanwhile travels together. After a fork the child connects anew
with its first request; the parent's connection stays the parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar
from weakref import WeakSet, finalize

from msgspec import Raw

from millstream.clock import Clock, SystemClock
from millstream.command import Command, waits
from millstream.errors import Closed, MillstreamError
from millstream.remote.address import Address
from millstream.remote.link import Link, Patience
from millstream.remote.pipeline import Asked
from millstream.remote.session import result_of, wait_for

T = TypeVar("T")


class _Call(Asked):
    """A request of a thread that sleeps until it is settled."""

    __slots__ = ("_done", "_gone", "_outcome")

    def __init__(self, command: Command[Any]) -> None:
        super().__init__(command)
        self._done = threading.Lock()
        self._done.acquire()
        self._gone = False

    def is_wanted(self) -> bool:
        """Not if its thread was interrupted."""
        return not self._gone

    def settle(self, outcome: Raw | MillstreamError) -> None:
        """Wake the thread."""
        self._outcome = outcome
        self._done.release()

    def answer(self) -> Raw:
        """Sleep until there is an answer."""
        try:
            self._done.acquire()
        except BaseException:
            self._gone = True
            raise
        if isinstance(self._outcome, MillstreamError):
            raise self._outcome
        return self._outcome


class _Keeper:
    """The background thread: an event loop with a link in it."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._closed = False
        self._calls: deque[_Call] = deque()
        self._opened: Future[Link] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.thread = threading.Thread(
            target=asyncio.run,
            args=(self._keep(address, patience),),
            name="millstream-remote",
            daemon=True,
        )
        self.thread.start()
        try:
            self.link = self._opened.result()
        except BaseException:
            self._opened.cancel()  # if we were interrupted, the thread ends by itself
            raise

    def call(self, command: Command[Any]) -> Raw:
        """The answer to a command."""
        call = _Call(command)
        with self._lock:
            self._check_open()
            self._calls.append(call)
            if len(self._calls) == 1:
                self._loop.call_soon_threadsafe(self._take_calls)
        return call.answer()

    def wait(self, command: Command[Any]) -> Raw:
        """The answer to a command that waits."""
        with self._lock:
            self._check_open()
            waiting: Future[Raw] = asyncio.run_coroutine_threadsafe(
                wait_for(self.link, command), self._loop
            )
        try:
            return waiting.result()
        except CancelledError:
            raise self._was_closed() from None
        finally:
            waiting.cancel()

    def close(self) -> None:
        """Ask the thread to end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)

    def leave(self) -> None:
        """In a child, let go of the parent's connection without a word to the server."""
        line = self.link.line
        if line is not None:
            socket = line.socket.transport.get_extra_info("socket")
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, socket.fileno(), inheritable=False)
            os.close(nothing)

    async def _keep(self, address: Address, patience: Patience) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            link = await Link.open(address, patience)
        except BaseException as error:
            if self._opened.set_running_or_notify_cancel():
                self._opened.set_exception(error)
            return
        if not self._opened.set_running_or_notify_cancel():
            await link.close()
            return
        self._opened.set_result(link)
        await self._stop.wait()
        self._take_calls()
        await link.close()

    def _take_calls(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
        link = self._opened.result()
        for call in calls:
            link.ask(call)

    def _check_open(self) -> None:
        if self._closed:
            raise self._was_closed()

    def _was_closed(self) -> Closed:
        return Closed(f"the connection to {self._address.shown} was closed here")


class RemoteSession:
    """Answers any thread's commands, from a server."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self.clock: Clock = SystemClock()
        self._address = address
        self._patience = patience
        self._closed = False
        self._starting = threading.Lock()
        self._keeper: _Keeper | None = None
        self.limits = self._start().link.hello.limits
        _sessions.add(self)

    def __repr__(self) -> str:
        return f"RemoteSession({self._address.shown!r})"

    def execute(self, command: Command[T]) -> T:
        """Answer a command; what it writes is durable on return."""
        keeper = self._keeper or self._start()
        answer = keeper.wait(command) if waits(command) else keeper.call(command)
        return result_of(command, answer)

    def close(self) -> None:
        """Hang up, once what was sent is answered; a second call does nothing."""
        with self._starting:
            self._closed = True
            keeper = self._keeper
        if keeper is not None:
            keeper.close()
            keeper.thread.join()

    def after_fork(self) -> None:
        """In the child: the next request connects anew."""
        self._starting = threading.Lock()
        if self._keeper is not None:
            self._ending.detach()
            self._keeper.leave()
            _left_behind.append(self._keeper)
            self._keeper = None

    def _start(self) -> _Keeper:
        with self._starting:
            if self._closed:
                raise Closed(f"the connection to {self._address.shown} was closed here")
            if self._keeper is None:
                self._keeper = _Keeper(self._address, self._patience)
                self._ending = finalize(self, self._keeper.close)
            return self._keeper


_sessions: WeakSet[RemoteSession] = WeakSet()
_left_behind: list[_Keeper] = []
"""What a child inherited. It is kept: to end it would disturb the parent's event loop."""


def _after_fork() -> None:
    for session in list(_sessions):
        session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
