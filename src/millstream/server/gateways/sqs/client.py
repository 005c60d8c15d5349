"""The sender of one request of SQS: it asks commands, which pass the server's one door.

A request is a coroutine, but most of its commands are answered by the commit that carries them out,
without a task of their own. A cancelled request returns the messages that were claimed for it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from msgspec import Raw

from millstream.cluster.read_level import STRONG
from millstream.command import Command, waits
from millstream.errors import Closed
from millstream.queue.commands import ClaimMessages
from millstream.remote.results import result_of
from millstream.server import direct
from millstream.server.auth.access import Principal
from millstream.server.cluster.forwarder import Forwarder
from millstream.server.core import Core

T = TypeVar("T")


class SqsClient:
    """A client that has entered by its credential, for the time of one request."""

    def __init__(self, core: Core, principal: Principal, credential: str) -> None:
        self.core = core
        self.principal = principal
        self._credential = credential

    async def execute(self, command: Command[T]) -> T:
        """Return the answer of a command; a waiting command ends with `Closed` when the server
        stops."""
        if self.core.seat is not None:
            return await self._execute_in_cluster(command)
        pending = _Pending(self.core, self.principal, command)
        if not pending.begin():
            answer: T = await self.core.execute(self.principal, command)
            return answer
        if not waits(command):
            return await pending.answer()  # type: ignore[no-any-return]
        return await self._unless_closing(pending)  # type: ignore[no-any-return]

    async def _unless_closing(self, pending: _Pending) -> Any:
        if pending.is_answered:
            return await pending.answer()
        answering = asyncio.ensure_future(pending.answer())
        closing = asyncio.ensure_future(self.core.closing.wait())
        try:
            await asyncio.wait([answering, closing], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            raise Closed("the server is stopping")
        finally:
            closing.cancel()
            answering.cancel()

    async def _execute_in_cluster(self, command: Command[T]) -> T:
        seat = self.core.seat
        assert seat is not None
        forwarder = Forwarder(seat, self._credential)
        try:
            answer = await self.core.answer_in_cluster(
                self.principal,
                command,
                self.core.admission.holdings_of(self.principal),
                forwarder,
                level=STRONG,
                traceparent=None,
            )
        finally:
            forwarder.close()
        if isinstance(answer, Raw):  # the leading node's, as it came
            return result_of(command, answer)
        return answer  # type: ignore[no-any-return]


class _Pending:
    """A command on the taskless road, and its answer as a future."""

    def __init__(self, core: Core, principal: Principal, command: Command[Any]) -> None:
        self._core = core
        self._principal = principal
        self._command = command
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[Any] | None = None
        """The task that goes on with a claim that waits."""

    @property
    def is_answered(self) -> bool:
        """Whether the answer has come."""
        return self._future.done()

    def begin(self) -> bool:
        """Begin the command; return False if it takes more than a commit."""
        return direct.begin(self._core, self._principal, self._command, None, self._described)

    async def answer(self) -> Any:
        """Return the answer, or raise the error in its place."""
        try:
            return await self._future
        finally:
            if self._task is not None and not self._task.done():
                self._task.cancel()

    def _described(self, answer: Any) -> None:
        """Take an answer, an exception, or the task that will have the answer."""
        if isinstance(answer, asyncio.Task):
            self._task = answer
            answer.add_done_callback(self._over)
        elif self._future.done():
            self._return_claims(answer)
        elif isinstance(answer, BaseException):
            self._future.set_exception(answer)
        else:
            self._future.set_result(answer)

    def _over(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            if not self._future.done():
                self._future.set_exception(Closed("the server is stopping"))
            return
        error = task.exception()
        if not self._future.done():
            self._described(error or task.result())
        elif error is None and self._future.cancelled():
            self._return_claims(task.result())

    def _return_claims(self, answer: Any) -> None:
        """Give back the messages of a claim whose request was cancelled."""
        if isinstance(self._command, ClaimMessages) and self._future.cancelled():
            self._core.return_claims(self._principal, self._command, answer)
