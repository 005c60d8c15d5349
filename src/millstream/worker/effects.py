"""What a shift asks of its shell, as values. A shell carries one out and tells the shift."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from millstream.queue.model.message import Message


class Handled(Struct, frozen=True):
    """How a handler ended; `committed` if its transaction has acknowledged the message already."""

    message: Message
    error: BaseException | None = None
    committed: bool = False


class Claim(Struct, frozen=True):
    """Claim up to `n` messages and acknowledge others, in one commit: then `claimed`, or `failed`."""

    n: int
    wait_s: float | None
    acks: Sequence[Message] = ()


class Finish(Struct, frozen=True):
    """End attempts whose leases still hold, in one commit: then `finished`, or `failed`."""

    messages: Sequence[Message]
    how: str
    """`ack`, `nack` or `fail`."""
    reason: str = ""
    delay_s: float | None = None
    """Until the next attempt; None for the queue's backoff."""
    is_return: bool = False
    """Whether the messages were not begun: giving them back counts for nothing."""


class Look(Struct, frozen=True):
    """Ask whether the queue is empty: then `looked`, or `failed`."""


class Begin(Struct, frozen=True):
    """Run the handler on messages; each is told once, by `ended`."""

    messages: Sequence[Message]


class Abandon(Struct, frozen=True):
    """Cancel handlers, or wait no longer for those that cannot be cancelled."""

    messages: Sequence[Message]


class Complain(Struct, frozen=True):
    """Say that a handler has failed."""

    message: Message
    error: BaseException
    then: str
    """What becomes of the message, in one word."""


class Idle(Struct, frozen=True):
    """Wait for outcomes, or a stop; until a time at most, if there is one."""

    until_s: float | None = None


class Renew(Struct, frozen=True):
    """Prolong leases: then `renewed`, or `refused`."""

    messages: Sequence[Message]


class Over(Struct, frozen=True):
    """Nothing is left to do."""


Effect = Claim | Finish | Look | Begin | Abandon | Complain | Idle | Over

PAUSES = (Claim, Idle, Over)
"""What may take a while: before it, a shell tells how it goes."""
