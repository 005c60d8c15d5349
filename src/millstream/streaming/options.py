"""The options of a producer, checked; the same for threads and coroutines."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from millstream.clock import Clock
from millstream.errors import InvalidInput
from millstream.limits import MiB
from millstream.log.model.names import check_name
from millstream.numbers import check_duration, check_whole
from millstream.record import Producer, Seconds

LINGER_S = 0.002
IN_FLIGHT = 10_000
IN_FLIGHT_BYTES = 64 * MiB
RETRY_S = 30.0
"""How long a producer repeats a block that failed for a reason that may pass, by default."""

LINGER_S_MAX = 60.0

EPOCH_BITS = 20


class ProducerSettings(TypedDict, total=False):
    """The settings of `producer()` of a log or a queue."""

    linger: Seconds
    """How long the first message of a block waits for others; 2 ms by default."""
    in_flight: int
    """Messages that may be on their way before a call waits; 10,000 by default."""
    in_flight_bytes: int
    """Bytes that may be on their way before a call waits; 64 MiB by default."""
    wait: bool
    """Whether a call waits at these bounds, which is the default, or raises `Overloaded`."""
    retry_for: Seconds
    """How long messages are repeated after a failure that may pass; 30 seconds by default."""
    name: str | None
    """A name fences the earlier producers of that name; the default is a random name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer gathers and repeats messages. Raises `InvalidInput` for impossible values."""

    linger: Seconds = LINGER_S
    in_flight: int = IN_FLIGHT
    in_flight_bytes: int = IN_FLIGHT_BYTES
    wait: bool = True
    """Whether a call waits at a bound, or raises `Overloaded`."""
    retry_for: Seconds = RETRY_S
    name: str | None = None

    def __post_init__(self) -> None:
        check_duration("linger", self.linger)
        check_duration("retry_for", self.retry_for)
        check_whole("in_flight", self.in_flight)
        check_whole("in_flight_bytes", self.in_flight_bytes)
        if not 0 <= self.linger_s <= LINGER_S_MAX:
            raise InvalidInput(
                f"linger must be from 0 to {LINGER_S_MAX:g} seconds, got {self.linger!r}"
            )
        for option in ("in_flight", "in_flight_bytes"):
            if (bound := getattr(self, option)) < 1:
                raise InvalidInput(f"{option} must be at least 1, got {bound:,}")
        if self.retry_s < 0:
            raise InvalidInput(f"retry_for must not be negative, got {self.retry_for!r}")
        if self.name is not None:
            check_name(self.name, "producer")

    @property
    def linger_s(self) -> float:
        """Return how long the first message of a block waits for others."""
        return _seconds(self.linger)

    @property
    def retry_s(self) -> float:
        """Return how long a block is repeated."""
        return _seconds(self.retry_for)

    def identity(self, clock: Clock) -> Producer:
        """Return the identity of a new producer, at its first sequence.

        A named producer begins a new epoch, which fences its earlier incarnations. The epoch is the
        wall time with random low bits, so no read of the store is needed, and two producers that
        begin in the same millisecond differ.
        """
        if self.name is None:
            return Producer(secrets.token_hex(8), 0)
        return Producer(self.name, 0, clock.wall_ms() << EPOCH_BITS | secrets.randbits(EPOCH_BITS))


def _seconds(duration: Seconds) -> float:
    """Return a duration in seconds; a linger may be shorter than a millisecond."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
