"""Returned claims: messages claimed for a consumer that left before it received them.

A cancelled claim may still be made by a commit or a thread that is under way. Its messages are
given back at once: no consumer has seen them, and none would finish them before their lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.embedded.loop.claim_loop import Loop
from millstream.queue.commands import ClaimMessages, Grant, Granted, ReturnClaims, Run
from millstream.queue.model.message import Lot
from millstream.queue.runs import lots_claimed


class Returns:
    """Gives messages back, by commits of the event loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def give_back(self, command: ClaimMessages, lots: Sequence[Lot]) -> None:
        """Make claimed messages available again that never reached their consumer.

        Popped messages are done: a pop delivers at most once.
        """
        self._give_back(command, lots_claimed(lots))

    def _give_back(self, command: ClaimMessages, runs: list[Run]) -> None:
        if runs and not command.pop:
            self._loop.commit_soon(ReturnClaims(command.queue, runs), _ignore)

    def give_back_granted(self, command: ClaimMessages, granted: Granted) -> None:
        """Give back the messages of a committed claim."""
        self.give_back_grants(command, granted.grants)

    def give_back_grants(self, command: ClaimMessages, grants: Sequence[Grant]) -> None:
        """Give back claimed messages that were not read."""
        self._give_back(command, [(grant.claim_id, grant.count, grant.attempt) for grant in grants])

    def give_back_found(self, command: ClaimMessages, claimed: tuple[list[Lot], int]) -> None:
        """Give back the messages that `consuming.claim_now` returned."""
        self.give_back(command, claimed[0])


def _ignore(answer: object) -> None:
    """Ignore the answer: messages that could not be given back return when their lease ends."""
