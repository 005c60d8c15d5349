"""ClaimCounts: the count of messages that one client has claimed and not finished.

The bounds have checked the length of runs before. A claim takes no more messages than the client has
free space for. A waiting claim takes only a share of the free space, so that other claims find space
too. A finished message frees its space. So does an expired lease: another client may claim the message.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Command, Transact
from millstream.errors import Overloaded
from millstream.queue.commands import ClaimMessages, FinishClaims, RenewClaims, ReturnClaims, Run

WAITING_SHARE = 10
"""A waiting claim takes at most one part in so many of the free space."""


class HeldMessages(Struct, frozen=True, kw_only=True):
    """The messages of one queue that a client holds, and its requests that wait for more."""

    queue: str
    consumer: str
    """The name that the client's last claim gave."""
    messages: int
    """Claimed messages whose leases run."""
    waiting: int
    """Requests that wait for messages."""


class ClaimCounts:
    """The claims of one client, by queue: the end of each lease in store time."""

    def __init__(self, claims_max: int) -> None:
        self._claims_max = claims_max
        self._held: dict[str, dict[int, int]] = {}
        self._reserved = 0
        """Messages that running claims may still bring."""
        self._consumers: dict[str, str] = {}
        """By queue: the name of the consumer in the last claim."""
        self._waiting: dict[str, int] = {}
        """By queue: the number of running claims that wait for messages."""

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def is_empty(self, now_ms: int) -> bool:
        """Whether no lease runs, and no claim is under way."""
        return not self._reserved and all(
            until <= now_ms for held in self._held.values() for until in held.values()
        )

    def held(self, now_ms: int) -> list[HeldMessages]:
        """Return the queues with claimed messages or waiting requests, in the order of their names."""
        counts = {
            queue: sum(until > now_ms for until in held.values())
            for queue, held in self._held.items()
        }
        return [
            HeldMessages(
                queue=queue,
                consumer=self._consumers.get(queue, ""),
                messages=counts.get(queue, 0),
                waiting=self._waiting.get(queue, 0),
            )
            for queue in sorted(counts.keys() | self._waiting.keys())
            if counts.get(queue) or self._waiting.get(queue)
        ]

    def reserve(self, command: ClaimMessages, now_ms: Callable[[], int]) -> ClaimMessages:
        """Return the claim, cut to the free space; raises `Overloaded` if there is no free space.

        Asks for store time only if it must look for expired leases.
        """
        if command.pop or command.count < 1:
            return command
        for run in command.acked:
            self._drop(command.queue, run)
        free = self._free()
        if free < command.count:
            self._drop_expired(now_ms())
            free = self._free()
        if free < 1:
            raise Overloaded(
                f"{len(self):,} messages are claimed by this client, and "
                f"{self._reserved:,} are asked for; the limit is {self._claims_max:,}: "
                "finish some first",
                limit=self._claims_max,
                held=len(self),
            )
        queue = command.queue
        if command.wait_ms:
            free = max(1, free // WAITING_SHARE)
            self._waiting[queue] = self._waiting.get(queue, 0) + 1
            self._consumers[queue] = command.consumer
        if free < command.count:
            command = replace(command, count=free)
        self._reserved += command.count
        return command

    def release(self, command: ClaimMessages) -> None:
        """Free the space that `reserve` took for a claim; the claim has ended."""
        if not command.pop and command.count >= 1:
            self._reserved -= command.count
            if command.wait_ms:
                self._stop_waiting(command.queue)

    def note(self, command: Command[Any], answer: Any) -> None:
        """Count the claims that a command has taken, renewed or finished, by its answer."""
        if isinstance(command, ClaimMessages):
            if not command.pop:
                held = self._held.setdefault(command.queue, {})
                self._consumers[command.queue] = command.consumer
                for lot in answer:
                    first = lot.label.claim_id
                    claim_ids = range(first, first + len(lot.values))
                    held.update(zip(claim_ids, repeat(lot.label.until_ms)))
        elif isinstance(command, FinishClaims | ReturnClaims):
            for run in command.claims:
                self._drop(command.queue, run)
        elif isinstance(command, RenewClaims):
            for run in command.claims:
                self._prolong(command.queue, run, answer.until_ms)
        elif isinstance(command, Transact):
            for step, result in zip(command.steps, answer, strict=True):
                self.note(step, result)

    def _stop_waiting(self, queue: str) -> None:
        self._waiting[queue] -= 1
        if not self._waiting[queue]:
            del self._waiting[queue]
            if queue not in self._held:  # a claim may name queues that do not exist
                del self._consumers[queue]

    def _free(self) -> int:
        return self._claims_max - len(self) - self._reserved

    def _drop_expired(self, now_ms: int) -> None:
        """Forget expired leases: another client may have claimed these messages."""
        for queue, held in list(self._held.items()):
            running = {claim_id: until for claim_id, until in held.items() if until > now_ms}
            if running:
                self._held[queue] = running
            else:
                del self._held[queue]
                if queue not in self._waiting:
                    self._consumers.pop(queue, None)

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
