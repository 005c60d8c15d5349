"""Hypothetical states: the state after operations that are not committed.

Some reads need upkeep first: a peek routes messages, and the hash of a log is stored for later. Upkeep
would have to wait while a commit is in flight. Instead the operations run on a copy of the entities, the
read is answered from the copy, and the copy is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.engine.protocol import Snapshot
from millstream.store.commit.transaction import Operation, WriteTransaction
from millstream.store.state.view import View

if TYPE_CHECKING:
    from millstream.store.state.state import State
    from millstream.store.store import Store

T = TypeVar("T")


class Reading:
    """A read with its upkeep, which is committed, or hypothetical while a commit is in flight.

    With `waits` the upkeep is always committed, for a caller that needs it stored.
    """

    def __init__(self, store: Store, *, waits: bool = False) -> None:
        self.store = store
        self.waits = waits
        self._operations: list[Operation[Any]] = []

    def run(self, operation: Operation[T]) -> T:
        """Run upkeep, whose changes the next `view` of this read sees."""
        if self.waits:
            return self.store.run(operation)
        done = None if self._operations else self.store.attempt(operation)
        if done is not None:
            return done.result  # type: ignore[return-value]
        results: list[T] = []
        self._operations.append(lambda tx: results.append(operation(tx)))
        self.view(lambda view: None)
        return results[-1]

    def view(self, question: Callable[[View], T]) -> T:
        """Answer as `Store.view`, with the upkeep of this read applied."""
        if not self._operations:
            return self.store.view(question)

        def ask(state: State, snapshot: Snapshot) -> T:
            transaction = WriteTransaction(
                state.hypothetical(),
                snapshot,
                self.store.limits,
                folder=self.store.engine.folder(),
            )
            for operation in self._operations:
                transaction.run(operation)
            return transaction.run(lambda tx: question(tx.view))

        return self.store.look(ask)
