"""An interactive transaction of a session: statements that run at once, and steps that end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from millstream.command import Transact, tidies
from millstream.embedded.rules import operation, put_for_later
from millstream.queue.service.backlog import placements_before
from millstream.record import SqlResult
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.commit.writer_turn import WriterTurn
from millstream.store.store import Store


class SessionTurn:
    """The writer's turn, for a caller that blocks its thread."""

    def __init__(self, store: Store, turn: WriterTurn) -> None:
        self._store = store
        self.turn = turn

    def check(self) -> None:
        """Raise if the transaction has ended."""
        self.turn.check()

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and return its result."""
        return self.turn.sql(statement, parameters)

    def commit(self, steps: list[Any]) -> list[Any]:
        """Run the steps, commit them with all statements, and return the answers of the steps."""
        command = Transact(steps)
        try:
            placements: list[Callable[[WriteTransaction], Any]] = []
            if queues := put_for_later(command):
                placements = placements_before(self._store, queues)
            answers = self.turn.commit(partial(_run, placements, command))
        finally:
            self.turn.roll_back()
        if tidies(command):
            self._store.tend_soon()
        return answers

    def roll_back(self) -> None:
        """Undo everything; after the end do nothing."""
        self.turn.roll_back()


def _run(
    placements: Iterable[Callable[[WriteTransaction], Any]], command: Transact, tx: WriteTransaction
) -> list[Any]:
    for place in placements:
        place(tx)
    return operation(command)(tx)
