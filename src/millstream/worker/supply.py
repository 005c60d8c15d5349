"""The supply of a worker: what it needs of a queue. The nouns of both surfaces are such."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from millstream.queue.model.message import Message, QueueInfo
from millstream.record import Seconds


class Supply(Protocol):
    """Messages to work on, and what becomes of them."""

    name: str

    def info(self) -> QueueInfo | None:
        """How the queue stands; None if there is no such queue."""

    def claim(
        self, n: int, *, lease: Seconds, wait: Seconds | None, ack: Sequence[Message]
    ) -> list[Message]:
        """Claim up to `n` messages for a while; acknowledges `ack` in the same commit."""

    def finish_each(
        self, messages: Sequence[Message], outcome: str, *, delay: Seconds | None, reason: str
    ) -> list[Message]:
        """End attempts whose lease still holds; answers the messages whose lease was lost."""

    def renew(self, messages: Sequence[Message], *, lease: Seconds) -> datetime:
        """Prolong leases; until when."""


class AsyncSupply(Protocol):
    """The same for coroutines."""

    name: str

    async def info(self) -> QueueInfo | None:
        """How the queue stands; None if there is no such queue."""

    async def claim(
        self, n: int, *, lease: Seconds, wait: Seconds | None, ack: Sequence[Message]
    ) -> list[Message]:
        """Claim up to `n` messages for a while; acknowledges `ack` in the same commit."""

    async def finish_each(
        self, messages: Sequence[Message], outcome: str, *, delay: Seconds | None, reason: str
    ) -> list[Message]:
        """End attempts whose lease still holds; answers the messages whose lease was lost."""

    async def renew(self, messages: Sequence[Message], *, lease: Seconds) -> datetime:
        """Prolong leases; until when."""
