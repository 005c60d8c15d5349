"""The remote session for threads: they share one connection, which they write and read themselves.

A caller encodes its command, sends it, and decodes its answer. What many threads ask for at once
travels together. After a fork the child connects anew with its first request; the parent's connection
stays the parent's.
"""

from __future__ import annotations

import os
import threading
from time import sleep
from typing import TypeVar
from weakref import WeakSet, finalize

from millstream.clock import Clock, SystemClock
from millstream.command import Command, waits
from millstream.errors import Closed
from millstream.remote.loop_client import Patience
from millstream.remote.nodes import Nodes
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of
from millstream.remote.thread_client import Exchange
from millstream.remote.waiting import pieces_of

T = TypeVar("T")


def _wait(exchange: Exchange, command: Command[T]) -> T:
    """The answer to a command that waits, after as many requests as it takes."""
    pieces = pieces_of(command, exchange.wait_ms, exchange.retry_for_s)
    step = next(pieces)
    try:
        while True:
            if isinstance(step, float):
                sleep(step)
                step = next(pieces)
                continue
            try:
                answer = exchange.call(step)
            except Interrupted as error:
                step = pieces.throw(error)
            else:
                step = pieces.send(answer)
    except StopIteration as end:
        found: T = end.value
        return found


class RemoteSession:
    """Answers any thread's commands, from a server."""

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        self.clock: Clock = SystemClock()
        self._nodes = nodes
        self._patience = patience
        self._closed = False
        self._starting = threading.Lock()
        self._exchange: Exchange | None = None
        self.limits = self._start().hello.limits
        _sessions.add(self)

    def __repr__(self) -> str:
        return f"RemoteSession({self._nodes.shown!r})"

    @property
    def transport(self) -> str:
        """How frames travel: `frames` on a bare connection, or `websocket`."""
        return (self._exchange or self._start()).transport

    def execute(self, command: Command[T]) -> T:
        """Answer a command; what it writes is durable on return."""
        exchange = self._exchange or self._start()
        if waits(command):
            return _wait(exchange, command)
        return result_of(command, exchange.call(command))

    def close(self) -> None:
        """Hang up, once what was sent is answered; a second call does nothing."""
        with self._starting:
            self._closed = True
            exchange = self._exchange
        if exchange is not None:
            exchange.close()

    def after_fork(self) -> None:
        """In the child: the next request connects anew."""
        self._starting = threading.Lock()
        if self._exchange is not None:
            self._ending.detach()
            self._exchange.leave()
            self._exchange = None

    def _start(self) -> Exchange:
        with self._starting:
            if self._closed:
                raise Closed(f"the connection to {self._nodes.shown} was closed here")
            if self._exchange is None:
                self._exchange = Exchange(self._nodes, self._patience)
                self._ending = finalize(self, self._exchange.close)
            return self._exchange


_sessions: WeakSet[RemoteSession] = WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
