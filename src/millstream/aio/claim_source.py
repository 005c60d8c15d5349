"""The methods of a queue that workers and consumers need; `Queue` implements them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from millstream.queue.model.message import Ending, Message, QueueInfo
from millstream.record import Seconds


class ClaimSource(Protocol):
    """A queue whose messages are claimed, prolonged and ended."""

    name: str

    async def info(self) -> QueueInfo:
        """Return the state and counts of the queue; `NotFound` if it does not exist."""

    async def claim(
        self,
        n: int,
        *,
        lease: Seconds,
        wait: Seconds | None,
        ack: Sequence[Message],
        results: Sequence[bytes | None] | None = None,
        consumer: str | None = None,
    ) -> list[Message]:
        """Claim up to `n` messages for a while; acknowledges `ack` in the same commit."""

    async def finish_each(
        self,
        messages: Sequence[Message],
        outcome: Ending,
        *,
        delay: Seconds | None,
        reason: str,
        result: Sequence[bytes | None] | None = None,
        error: bytes | None = None,
    ) -> list[Message]:
        """End attempts whose lease still holds; answers the messages whose lease was lost."""

    async def renew(self, messages: Message | Sequence[Message], *, lease: Seconds) -> datetime:
        """Prolong leases; until when."""
