"""Supposing: a state as it would be after operations that are not committed.

Some reads do upkeep on their way: a peek routes messages, the hash of a log is noted. While a commit
is in flight, in this process or in another one, upkeep would have to wait for it. Then a read supposes
it: the operations run on a copy of what they touch, the read is answered from that, and the copy is
thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.engine.protocol import Snapshot
from millstream.store.commit.draft import Draft
from millstream.store.commit.transaction import Operation, WriteTransaction
from millstream.store.state.view import View

if TYPE_CHECKING:
    from millstream.store.state.state import State
    from millstream.store.store import Store

T = TypeVar("T")


class Reading:
    """One read, and the upkeep that it does: committed, or supposed while a commit is in flight.

    With `waits` it is committed in any case, for a caller that goes on from what is stored.
    """

    def __init__(self, store: Store, *, waits: bool = False) -> None:
        self.store = store
        self.waits = waits
        self._supposed: list[Operation[Any]] = []

    def run(self, operation: Operation[T]) -> T:
        """Do upkeep; what it changes, the next `view` of this read sees."""
        if self.waits:
            return self.store.run(operation)
        done = None if self._supposed else self.store.attempt(operation)
        if done is not None:
            return done.result  # type: ignore[return-value]
        results: list[T] = []
        self._supposed.append(lambda tx: results.append(operation(tx)))
        self.view(lambda view: None)
        return results[-1]

    def view(self, question: Callable[[View], T]) -> T:
        """As `Store.view`, with the upkeep of this read."""
        if not self._supposed:
            return self.store.view(question)

        def ask(state: State, snapshot: Snapshot) -> T:
            supposed, rows = state.copied(), Draft(snapshot, self.store.engine.folder())
            transaction = WriteTransaction(supposed, rows, self.store.limits)
            for operation in self._supposed:
                transaction.run(operation)
            return question(View(supposed, rows))

        return self.store.standby.look(ask)
