"""Returns: messages that were claimed for a consumer which has left before they reached it.

A claim that is cancelled may be made all the same, by a commit or a thread that was at it. What it got
goes back at once: no consumer has seen it, and none would finish it before its lease ends.
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

    def give_back(self, command: ClaimMessages, found: Sequence[Lot]) -> None:
        """Messages that were claimed never reached their consumer: others can claim them at once.

        Popped ones are done; a pop gives each message at most once.
        """
        self._give_back(command, lots_claimed(found))

    def _give_back(self, command: ClaimMessages, runs: list[Run]) -> None:
        if runs and not command.pop:
            self._loop.commit_soon(ReturnClaims(command.queue, runs), _ignore)

    def give_back_granted(self, command: ClaimMessages, granted: Granted) -> None:
        """The same of what a commit has claimed."""
        self.give_back_grants(command, granted.grants)

    def give_back_grants(self, command: ClaimMessages, grants: Sequence[Grant]) -> None:
        """The same of what was claimed, and is not read."""
        self._give_back(command, [(one.claim_id, one.count, one.attempt) for one in grants])

    def give_back_found(self, command: ClaimMessages, found: tuple[list[Lot], int]) -> None:
        """The same of what `consuming.claim_now` has found."""
        self.give_back(command, found[0])


def _ignore(answer: object) -> None:
    """What could not be given back comes again when its lease ends."""
