"""Interactive transactions of coroutines: a thread of the session runs their statements.

A statement may take long, so the event loop does not run it. The handover to the thread and back costs
about 60 µs per statement. Threads run their statements themselves (`SessionTurn`).

The store has one writer's turn, so one thread is enough. The coroutines of a session wait in line for
that thread, and not inside it: the statements of the transaction that holds the turn need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from millstream.embedded.session_turn import SessionTurn
from millstream.record import SqlResult
from millstream.store.commit.ticket import held_by_caller
from millstream.store.commit.writer_turn import WriterTurn
from millstream.store.store import Store

T = TypeVar("T")


class LoopTurn:
    """The writer's turn of a coroutine."""

    def __init__(self, turn: SessionTurn, pool: ThreadPoolExecutor) -> None:
        self._session_turn = turn
        self._pool = pool

    def check(self) -> None:
        """Raise if the transaction has ended."""
        self._session_turn.check()

    async def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and return its result."""
        running = self._pool.submit(self._session_turn.sql, statement, parameters)
        answering = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            answering.add_done_callback(_dismiss)
            raise

    async def begin_part(self) -> None:
        """Begin a part of the transaction that can be undone alone."""
        await self._at_boundary(self._session_turn.begin_part)

    async def keep_part(self) -> None:
        """Join the innermost part to what is around it."""
        await self._at_boundary(self._session_turn.keep_part)

    async def undo_part(self) -> None:
        """Undo the statements of the innermost part."""
        await self._ask(self._session_turn.undo_part)

    async def commit(self, steps: list[Any]) -> list[Any]:
        """Run the steps, commit them with all statements, and return the answers of the steps.

        If the caller is cancelled meanwhile, the commit goes on.
        """
        return await self._ask(self._session_turn.commit, steps)

    async def roll_back(self) -> None:
        """Undo everything; a statement that a cancelled caller has left running is interrupted."""
        self._session_turn.turn.cancel()
        await self._ask(self._session_turn.roll_back)

    async def _at_boundary(self, question: Callable[[], None]) -> None:
        """Begin or end a part. If the caller is cancelled meanwhile, undo the whole transaction.

        A cancelled caller does not know whether the part began or ended. So the caller cannot undo the
        part.
        """
        answering = asyncio.wrap_future(self._pool.submit(question))
        try:
            await asyncio.shield(answering)
        except asyncio.CancelledError:
            with suppress(Exception):
                await answering
            await self.roll_back()
            raise

    async def _ask(self, question: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.shield(asyncio.wrap_future(self._pool.submit(question, *arguments)))


def _dismiss(answering: asyncio.Future[Any]) -> None:
    """Look at the error of a statement whose caller has left: else asyncio logs the error as unseen."""
    if not answering.cancelled():
        answering.exception()


class LoopTurns:
    """The line of a session's coroutines that want the writer's turn."""

    def __init__(self, store: Store, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._store = store
        self._call_soon = call_soon
        self._line = asyncio.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.holder: asyncio.Task[Any] | None = None
        """The task that holds the turn."""

    def refuse_holder(self) -> None:
        """Raise if the current task would wait for its own transaction."""
        if self.holder is not None and self.holder is asyncio.current_task():
            raise held_by_caller()

    async def begin(self, timeout_s: float) -> LoopTurn:
        """Wait in line for the writer's turn, and take it."""
        self.refuse_holder()
        await self._line.acquire()
        self.holder = asyncio.current_task()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-begin")
        beginning = self._pool.submit(self._store.begin, timeout_s, on_end=self._on_end)
        try:
            turn = await asyncio.wrap_future(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(self._drop)
            raise
        except BaseException:
            self._leave()
            raise
        return LoopTurn(SessionTurn(self._store, turn), self._pool)

    def close(self) -> None:
        """Let go of the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _drop(self, beginning: Future[WriterTurn]) -> None:
        """Give up a turn whose caller was cancelled; called on the thread that has taken the turn."""
        if beginning.cancelled() or beginning.exception() is not None:
            self._on_end()
        else:
            beginning.result().roll_back()

    def _on_end(self) -> None:
        self._call_soon(self._leave)

    def _leave(self) -> None:
        self.holder = None
        self._line.release()
