# Generated from src/millstream/aio/transaction.py by `make generate`: change that file, not this one.

"""A transaction as threads hold it: steps that are gathered, and happen in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from millstream.command import Session, Sql, Transact, sql_parameters
from millstream.embedded.steps import Later, Steps


class Transaction(Steps):
    """Gathers steps. The end of the block commits all steps; an exception commits none."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.limits)
        self._session = session

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Later:
        """Read or write the application's own tables, on SQLite, in the same commit.

        The answer is a `SqlResult`: the rows, and the number of changed rows. Only a program that
        has opened the file can use it; servers and clusters do not offer SQL. To read the result
        before the commit, use `ms.begin()`.
        """
        return self._add(Sql(statement, sql_parameters(parameters)))

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
