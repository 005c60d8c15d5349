"""An interactive transaction as coroutines hold it: statements that run at once, before the commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from millstream.aio.runtime import Turn, begin_turn
from millstream.command import AsyncSession, sql_parameters
from millstream.embedded.steps import Later, Steps
from millstream.record import SqlResult


class InteractiveTransaction(Steps):
    """Holds the writer's turn of a store: `sql` runs at once, and the end of the block commits.

    The other methods gather steps on logs, queues and rooms, as `ms.transaction()` does. The end of
    the block runs the steps and commits them with all statements, or commits nothing if that fails.
    An exception commits nothing. All other writers wait meanwhile, at most for the time limit.
    """

    def __init__(self, session: AsyncSession, timeout_s: float) -> None:
        super().__init__(session.limits)
        self._session = session
        self._timeout_s = timeout_s
        self._turn: Turn | None = None

    async def sql(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> SqlResult:
        """Run a statement on the application's own tables now, and return its result.

        A statement that fails undoes itself. So the block may catch the error, such as a
        `ConstraintViolation`, and go on.
        """
        if type(parameters) is not tuple and type(parameters) is not list:
            parameters = sql_parameters(parameters)
        turn = self._turn
        if turn is None:
            turn = self._begun()
        return await turn.sql(statement, parameters)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Return a block inside the transaction: an exception that leaves it undoes this block alone.

        Its statements are undone and its steps forgotten, and the exception goes on. So the
        transaction may catch the exception around the block, and go on. Blocks may be nested.
        """
        turn = self._begun()
        await turn.begin_part()
        steps, then = len(self._steps), len(self._then)
        try:
            yield
        except BaseException:
            del self._steps[steps:], self._answers[steps:], self._then[then:]
            await turn.undo_part()
            raise
        await turn.keep_part()

    async def __aenter__(self) -> Self:
        if self._turn is not None:
            raise RuntimeError("a transaction is one block: call ms.begin() for each")
        self._turn = await begin_turn(self._session, self._timeout_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        turn = self._begun()
        if kind is None:
            self._settle(await turn.commit(self._steps))
        else:
            await turn.roll_back()

    def _add(
        self,
        step: Any,
        notify: Callable[[], None] | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Later:
        self._begun().check()
        self._steps.append(step)
        answer = Later(notify, read)
        self._answers.append(answer)
        return answer

    def _begun(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("the transaction has not begun: its calls belong inside the block")
        return self._turn
