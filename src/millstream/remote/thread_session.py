"""The remote session for threads: the calling threads share, write and read a connection.

A caller encodes a command, sends the request, and decodes the answer. Requests of many threads
travel together. After a fork the child connects anew with its first request; the parent keeps its
connection.
"""

from __future__ import annotations

import threading
from time import sleep
from typing import TypeVar
from weakref import finalize

from millstream import forked_process
from millstream.clock import Clock, SystemClock
from millstream.command import Command, waits
from millstream.errors import Closed
from millstream.remote.loop_client import Patience
from millstream.remote.nodes import Nodes
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of
from millstream.remote.thread_client import ThreadClient
from millstream.remote.waits import pieces_of

T = TypeVar("T")


def _wait(client: ThreadClient, command: Command[T]) -> T:
    """Return the answer to a waiting command, after as many requests as needed."""
    pieces = pieces_of(command, client.wait_ms, client.retry_for_s)
    step = next(pieces)
    try:
        while True:
            if isinstance(step, float):
                sleep(step)
                step = next(pieces)
                continue
            try:
                answer = client.call(step)
            except Interrupted as error:
                step = pieces.throw(error)
            else:
                step = pieces.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class RemoteSession:
    """Executes the commands of any thread on a server."""

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        self.clock: Clock = SystemClock()
        self._nodes = nodes
        self._patience = patience
        self._closed = False
        self._starting = threading.Lock()
        self._client: ThreadClient | None = None
        self.limits = self._start().hello.limits
        forked_process.register(self)

    def __repr__(self) -> str:
        return f"RemoteSession({self._nodes.shown!r})"

    @property
    def transport(self) -> str:
        """Return the transport of frames: `frames` on a bare connection, or `websocket`."""
        return (self._client or self._start()).transport

    def execute(self, command: Command[T]) -> T:
        """Execute a command; its writes are durable on return."""
        client = self._client or self._start()
        if waits(command):
            return _wait(client, command)
        return result_of(command, client.call(command))

    def close(self) -> None:
        """Close the connection after the pending answers; a second call does nothing."""
        with self._starting:
            self._closed = True
            client = self._client
        if client is not None:
            client.close()

    def after_fork(self) -> None:
        """Let the next request of a child process connect anew."""
        self._starting = threading.Lock()
        if self._client is not None:
            self._ending.detach()
            self._client.leave()
            self._client = None

    def _start(self) -> ThreadClient:
        with self._starting:
            if self._closed:
                raise Closed(f"the connection to {self._nodes.shown} was closed here")
            if self._client is None:
                self._client = ThreadClient(self._nodes, self._patience)
                self._ending = finalize(self, self._client.close)
            return self._client
