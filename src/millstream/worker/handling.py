"""Handling: runs a worker's handler on a message, and commits the transaction of the handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.command import Transact
from millstream.limits import Limits
from millstream.queue.model.message import Message
from millstream.worker.crew import IsDropped
from millstream.worker.effects import Handled
from millstream.worker.handler import HandlerTransaction, wants_transaction
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import TimeLimitExceeded

Commit = Callable[[Transact], list[Any]]
AsyncCommit = Callable[[Transact], Awaitable[list[Any]]]


class PlainHandling:
    """Runs a plain function on messages."""

    def __init__(self, options: WorkerOptions, limits: Limits, commit: Commit) -> None:
        self._handler: Callable[..., Any] = options.handler
        self._transacts = wants_transaction(options.handler)
        self._limits = limits
        self._commit = commit

    def __call__(self, message: Message, is_dropped: IsDropped) -> Handled:
        """Run the handler; an abandoned message is dropped with the steps of its transaction."""
        if not self._transacts:
            _refuse_coroutine(self._handler(message))
            return Handled(message)
        tx = HandlerTransaction(self._limits)
        _refuse_coroutine(self._handler(message, tx))
        if is_dropped(message):
            return Handled(message)
        tx.committed(self._commit(tx.closing(message)))
        return Handled(message, committed=True)


class AsyncHandling:
    """Runs a coroutine function on messages, each within the time limit."""

    def __init__(self, options: WorkerOptions, limits: Limits, commit: AsyncCommit) -> None:
        self._handler: Callable[..., Any] = options.handler
        self._transacts = wants_transaction(options.handler)
        self._limits = limits
        self._limit_s = options.limit_s
        self._commit = commit

    async def __call__(self, message: Message) -> Handled:
        """Run the handler."""
        tx = HandlerTransaction(self._limits) if self._transacts else None
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                await (self._handler(message) if tx is None else self._handler(message, tx))
        except TimeoutError as error:
            if limit.expired():
                raise TimeLimitExceeded(f"took longer than {self._limit_s:g} s") from error
            raise
        if tx is None:
            return Handled(message)
        tx.committed(await self._commit(tx.closing(message)))
        return Handled(message, committed=True)


def _refuse_coroutine(answer: Any) -> None:
    """Refuse the coroutine that a plain function returned: nothing was executed."""
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("the handler returned a coroutine: make the handler itself `async def`")
