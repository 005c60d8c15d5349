"""The cancel requests of a queue: messages in flight whose consumers are asked to stop.

A request becomes a cancel when the attempt is given back or its lease ends. A message that is
acknowledged or fails keeps its ending; its request is dropped with the next request.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from millstream.store.state.entity import Entity


class CancelsNoted(Struct, array_like=True, frozen=True):
    """Requests were made, or are over."""

    made: list[int] = []
    """The claim ids of messages whose consumers are asked to stop."""
    over: list[int] = []


class CancelRequests(Entity, array_like=True):
    """The open requests of one queue."""

    claims: dict[int, bool] = field(default_factory=dict)
    """The claim ids with an open request."""
    total: int = 0
    """The number of requests that were ever made."""

    changes: ClassVar = CancelsNoted
    computed: ClassVar = (CancelsNoted,)
    weight: ClassVar[int] = 4

    def apply(self, change: CancelsNoted) -> None:
        """Move to the next state."""
        for claim_id in change.over:
            self.claims.pop(claim_id, None)
        for claim_id in change.made:
            self.claims[claim_id] = True
        self.total += len(change.made)

    def exists(self) -> bool:
        """Whether a request was ever made."""
        return bool(self.total)


class RequestedCancels(Struct, frozen=True):
    """The open cancel requests of a queue, as `wait_cancels` answers them."""

    claims: list[int]
    """The claim ids of messages in flight whose consumers are asked to stop."""
    total: int
    """The number of requests that were ever made; the next `wait_cancels` takes it as `seen`."""
