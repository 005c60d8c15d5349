# Generated from src/millstream/aio/transaction.py by `make generate`: change that file, not this one.

"""A transaction as threads hold it: steps that are gathered, and happen in one commit."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from millstream.command import Session, Transact
from millstream.embedded.steps import DeferredSteps


class Transaction(DeferredSteps):
    """Gathers steps. The end of the block commits all steps; an exception commits none."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.limits)
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        if kind is None and self._steps:
            self._settle(self._session.execute(Transact(self._steps)))
