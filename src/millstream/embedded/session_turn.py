"""An interactive transaction of a session: statements that run at once, and steps that end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from millstream.embedded.rules import run_steps
from millstream.queue.service.backlog import placements_before
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.commit.writer_turn import WriterTurn
from millstream.store.store import Store


class SessionTurn:
    """The writer's turn, for a caller that blocks its thread."""

    __slots__ = (
        "_store",
        "begin_part",
        "check",
        "keep_part",
        "roll_back",
        "sql",
        "turn",
        "undo_part",
    )

    def __init__(self, store: Store, turn: WriterTurn) -> None:
        self._store = store
        self.turn = turn
        # Attributes instead of methods: a statement makes one call less.
        self.check = turn.check
        self.sql = turn.sql
        self.roll_back = turn.roll_back
        self.begin_part, self.keep_part = turn.begin_part, turn.keep_part
        self.undo_part = turn.undo_part

    def commit(self, steps: list[Any]) -> list[Any]:
        """Run the steps, commit them with all statements, and return the answers of the steps."""
        tidies = False
        try:
            queues: set[str] = set()
            for step in steps:
                traits = step.traits
                if traits.may_be_for_later and step.is_for_later:
                    queues.add(step.queue)
                tidies = tidies or traits.tidies
            placements = placements_before(self._store, queues) if queues else ()
            answers = self.turn.commit(partial(_run, placements, steps))
        finally:
            self.roll_back()
        if tidies:
            self._store.tend_soon()
        return answers


def _run(
    placements: Iterable[Callable[[WriteTransaction], Any]], steps: list[Any], tx: WriteTransaction
) -> list[Any]:
    for place in placements:
        place(tx)
    return run_steps(tx, steps)
