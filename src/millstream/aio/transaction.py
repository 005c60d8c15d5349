"""A transaction as coroutines hold it: steps that are gathered, and happen in one commit."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from millstream.command import AsyncSession, Transact
from millstream.embedded.steps import DeferredSteps


class Transaction(DeferredSteps):
    """Gathers steps. The end of the block commits all steps; an exception commits none."""

    def __init__(self, session: AsyncSession) -> None:
        super().__init__(session.limits)
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        if kind is None and self._steps:
            self._settle(await self._session.execute(Transact(self._steps)))
