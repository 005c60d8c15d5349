"""The effects that a shift asks of its shell, as values; the shell reports their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from millstream.queue.model.message import Ending, Message


class Verdict(Struct, frozen=True):
    """How to end an attempt that did not succeed, as the one who ran the handler decided."""

    how: Ending
    reason: str = ""
    delay_s: float | None = None
    """The delay before the next attempt; None for the queue's backoff."""
    error: bytes | None = None
    """The error as the message keeps it; None: the message keeps no error."""


class Handled(Struct, frozen=True):
    """The end of a handler; `committed` if its transaction has acknowledged the message already."""

    message: Message
    error: BaseException | None = None
    committed: bool = False
    result: bytes | None = None
    """The result that the message keeps; None: no result."""
    verdict: Verdict | None = None
    """How the attempt ends; None: the shift decides by the error."""


class Claim(Struct, frozen=True):
    """Claim up to `n` messages and send acknowledgements; answered by `claimed` or `failed`."""

    n: int
    wait_s: float | None
    acks: Sequence[Message] = ()
    results: Mapping[int, bytes] = {}  # msgspec copies it
    """The results of acknowledged messages, by claim id."""


class Finish(Struct, frozen=True):
    """End attempts whose leases still hold, in one commit; answered by `finished` or `failed`."""

    messages: Sequence[Message]
    how: Ending
    """`ack`, `nack` or `fail`."""
    reason: str = ""
    delay_s: float | None = None
    """The delay before the next attempt; None for the queue's backoff."""
    is_return: bool = False
    """Whether the messages were not begun: returning them does not count as a failure."""
    error: bytes | None = None
    """The error that the messages keep."""
    results: Mapping[int, bytes] = {}  # msgspec copies it
    """The results of acknowledged messages, by claim id."""


class Look(Struct, frozen=True):
    """Ask whether the queue is empty; answered by `looked` or `failed`."""


class Begin(Struct, frozen=True):
    """Run the handler on messages; each message is reported once, by `ended`."""

    messages: Sequence[Message]


class Abandon(Struct, frozen=True):
    """Cancel handlers, or stop waiting for handlers that cannot be cancelled."""

    messages: Sequence[Message]


class Complain(Struct, frozen=True):
    """Report that a handler has failed."""

    message: Message
    error: BaseException
    then: str
    """The fate of the message, in one word."""


class Idle(Struct, frozen=True):
    """Wait for outcomes or a stop, at most until a time."""

    until_s: float | None = None


class Renew(Struct, frozen=True):
    """Prolong leases; answered by `renewed` or `refused`."""

    messages: Sequence[Message]


class Over(Struct, frozen=True):
    """Nothing is left to do."""


Effect = Claim | Finish | Look | Begin | Abandon | Complain | Idle | Over

PAUSES = (Claim, Idle, Over)
"""Effects that may take a while: the shell reports progress before them."""
