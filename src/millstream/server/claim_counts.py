"""Holdings: the messages that one client has claimed and not finished, counted.

Runs of claims were checked for their length before. A claim takes no more than there is room for,
and one that waits no more than a part of it, so that waiting claims leave room for others. What is
finished makes room, and so does a lease that has ended: another client may have that message.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from msgspec.structs import replace

from millstream.command import Command, Transact
from millstream.errors import Overloaded
from millstream.queue.commands import ClaimMessages, FinishClaims, RenewClaims, ReturnClaims, Run

WAITING_SHARE = 10
"""A claim that waits takes at most this part of the room that is left."""


class Holdings:
    """Claims of one client, by queue: of each, until when its lease runs, in store time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, dict[int, int]] = {}
        self._asked = 0
        """Messages that claims under way may still bring."""

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def is_empty(self, now_ms: int) -> bool:
        """Whether nothing is claimed whose lease still runs, or being claimed."""
        return not self._asked and all(
            until <= now_ms for held in self._held.values() for until in held.values()
        )

    def reserve(self, command: ClaimMessages, now_ms: Callable[[], int]) -> ClaimMessages:
        """The claim, for as many messages as there is room for; `Overloaded` if there is none.

        It asks for store time only if it must look for leases that have ended.
        """
        if command.pop or command.count < 1:
            return command
        for run in command.acked:
            self._drop(command.queue, run)
        room = self._room()
        if room < command.count:
            self._let_go(now_ms())
            room = self._room()
        if room < 1:
            raise Overloaded(
                f"{len(self):,} messages are claimed by this client, and "
                f"{self._asked:,} are asked for; the limit is {self._most:,}: finish some first",
                limit=self._most,
            )
        if command.wait_ms:
            room = max(1, room // WAITING_SHARE)
        if room < command.count:
            command = replace(command, count=room)
        self._asked += command.count
        return command

    def release(self, command: ClaimMessages) -> None:
        """A claim that was reserved for has ended, whatever it brought."""
        if not command.pop and command.count >= 1:
            self._asked -= command.count

    def note(self, command: Command[Any], answer: Any) -> None:
        """Count what a command's answer gave or took."""
        if isinstance(command, ClaimMessages):
            if not command.pop:
                held = self._held.setdefault(command.queue, {})
                for lot in answer:
                    first = lot.label.claim_id
                    taken = range(first, first + len(lot.values))
                    held.update(zip(taken, repeat(lot.label.until_ms)))
        elif isinstance(command, FinishClaims | ReturnClaims):
            for run in command.claims:
                self._drop(command.queue, run)
        elif isinstance(command, RenewClaims):
            for run in command.claims:
                self._prolong(command.queue, run, answer.until_ms)
        elif isinstance(command, Transact):
            for step, result in zip(command.steps, answer, strict=True):
                self.note(step, result)

    def _room(self) -> int:
        return self._most - len(self) - self._asked

    def _let_go(self, now_ms: int) -> None:
        """Forget claims whose lease has ended: another client may have them."""
        for queue, held in list(self._held.items()):
            left = {claim_id: until for claim_id, until in held.items() if until > now_ms}
            if left:
                self._held[queue] = left
            else:
                del self._held[queue]

    def _drop(self, queue: str, run: Run) -> None:
        held = self._held.get(queue)
        if not held:
            return
        first, count, _ = run
        for claim_id in range(first, first + count):
            held.pop(claim_id, None)

    def _prolong(self, queue: str, run: Run, until_ms: int) -> None:
        held = self._held.get(queue, {})
        first, count, _ = run
        for claim_id in range(first, first + count):
            if claim_id in held:
                held[claim_id] = until_ms
