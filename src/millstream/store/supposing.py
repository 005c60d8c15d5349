"""Supposing: a state as it would be after operations that are not committed.

Some reads do upkeep on their way: a peek routes messages, the hash of a log is noted. While a commit
is in flight, upkeep would have to wait for it. Then a read supposes it: the operations run on a copy
of what they touch, the read is answered from that, and the copy is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.errors import InvalidInput
from millstream.store.engine import Row, Snapshot
from millstream.store.rows import View
from millstream.store.transaction import Operation, Transaction

if TYPE_CHECKING:
    from millstream.store.state import State
    from millstream.store.store import Store

T = TypeVar("T")


class Reading:
    """One read, and the upkeep that it does: committed, or supposed while a commit is in flight.

    With `waits` it is committed in any case, for a caller that goes on from what is stored.
    """

    def __init__(self, store: Store, *, waits: bool = False) -> None:
        self.store = store
        self._waits = waits
        self._supposed: list[Operation[Any]] = []

    def run(self, operation: Operation[T]) -> T:
        """Do upkeep; what it changes, the next `look` of this read sees."""
        if self._waits or not (self._supposed or self.store.is_committing):
            return self.store.run(operation)
        results: list[T] = []
        self._supposed.append(lambda tx: results.append(operation(tx)))
        self.look(lambda state, snapshot: None)
        return results[-1]

    def look(self, question: Callable[[State, Snapshot], T]) -> T:
        """As `Store.look`, with the upkeep of this read."""
        if not self._supposed:
            return self.store.look(question)
        return self.store.standby.look(self._after_upkeep(question))

    def view(self, question: Callable[[View], T]) -> T:
        """The same for questions to rows and entities."""
        return self.look(lambda state, snapshot: question(View(state, snapshot)))

    def _after_upkeep(
        self, question: Callable[[State, Snapshot], T]
    ) -> Callable[[State, Snapshot], T]:
        def ask(state: State, snapshot: Snapshot) -> T:
            supposed, rows = state.copied(), Unwritten(snapshot)
            transaction = Transaction(supposed, rows, self.store.limits)
            for operation in self._supposed:
                transaction.run(operation)
            return question(supposed, rows)

        return ask


class Unwritten:
    """A writer over a snapshot: it sees its own writes, and commits nothing."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        return self._changes[key] if key in self._changes else self._snapshot.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows with start <= key < stop."""
        changed = {key: self._changes[key] for key in self._changes if start <= key < stop}
        rows = self._snapshot.scan(start, stop, limit=limit + len(changed))
        if not changed:
            return rows
        found = {key: value for key, value in rows if key not in changed}
        found.update((key, value) for key, value in changed.items() if value is not None)
        return sorted(found.items())[:limit]

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        return self._snapshot.last_seq()

    def first_seq(self) -> int:
        """The sequence of the oldest delta."""
        return self._snapshot.first_seq()

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        self._changes.update(rows)

    def delete(self, keys: Iterable[bytes]) -> None:
        """Delete rows."""
        self._changes.update(dict.fromkeys(keys))

    def delete_range(self, start: bytes, stop: bytes, *, limit: int) -> bool:
        """Delete up to `limit` rows with start <= key < stop; True if more are left."""
        rows = self.scan(start, stop, limit=limit)
        self.delete(key for key, _ in rows)
        return len(rows) == limit

    def commit(self) -> None:
        """Never called: what is supposed is thrown away."""
        raise InvalidInput("what a read supposes is not committed")
