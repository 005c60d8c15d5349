"""What becomes of a request whose connection was lost, or that is refused for now: rules, without I/O.

A request that writes nothing is asked again. So is one whose repeat is harmless, such as an append
under a producer's sequence: the server knows it, and stores it once. The outcome of everything
else is unknown, and the caller gets `OutcomeUnknown`, never a failure. Which is which, the command
itself declares.

A request that a server answers with `NotLeader` or `NoQuorum` was not carried out. So any request is
asked again then, after a pause that grows.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from millstream.command import Command, is_repeatable, waits
from millstream.errors import Closed, MillstreamError, OutcomeUnknown
from millstream.log.commands import Append
from millstream.queue.commands import ClaimMessages

DELAY_S_FIRST = 0.05
DELAY_S_MAX = 5.0
"""Between attempts to connect: exponential backoff, with jitter from half of it to all."""

QUORUM_DELAY_S_MAX = 2.0
"""Between two tries at a cluster without a quorum, at most: it is back within seconds, mostly."""


def delay_s(attempt: int, chance: float, *, most_s: float = DELAY_S_MAX) -> float:
    """How long to wait before an attempt: not at all before the first."""
    if attempt == 0:
        return 0.0
    return float(min(most_s, DELAY_S_FIRST * 2 ** min(attempt, 20)) * (0.5 + chance / 2))


class RepeatFate(Enum):
    """What to do with a request that was sent, and not answered."""

    ASK_AGAIN = auto()
    """It changes nothing, or the server recognises the repeat."""
    WAIT_AGAIN = auto()
    """It waits: the caller sends it again, for the time that is left."""
    TELL = auto()
    """It may have happened."""


class Interrupted(MillstreamError):
    """A wait whose connection was lost, or that was refused for now; never seen by users.

    Data: `refusal`, the error of the server, if there is one.
    """


def fate_of(command: Command[Any]) -> RepeatFate:
    """What to do with a command whose outcome is unknown."""
    if not is_repeatable(command):
        return RepeatFate.TELL
    return RepeatFate.WAIT_AGAIN if waits(command) else RepeatFate.ASK_AGAIN


def unknown(command: Command[Any], why: str) -> OutcomeUnknown:
    """The error for a command that may have been carried out."""
    name = type(command).__name__
    return OutcomeUnknown(f"{why}: {name} may have been carried out, or not. {_advice(command)}")


def unreachable(command: Command[Any], *, sent: bool, why: MillstreamError) -> MillstreamError:
    """The error for a command when the server stays away, or the session ends."""
    if sent and command.writes and not (isinstance(why, Closed) and _only_leases(command)):
        return unknown(command, why.message)
    return type(why)(why.message, **why.data)


def _only_leases(command: Command[Any]) -> bool:
    """Whether all that it can leave behind ends by itself."""
    return isinstance(command, ClaimMessages) and not command.pop and not command.acked


def _advice(command: Command[Any]) -> str:
    if isinstance(command, ClaimMessages):
        if command.pop:
            return "Messages that it popped are gone; claim and acknowledge those that must not be"
        return "Messages that it took come again by themselves when their lease ends"
    if isinstance(command, Append):
        if command.producer is not None:
            return "Repeat it under the same producer sequence: it is then stored exactly once"
        return "Look before you repeat it; under a Producer's sequence a repeat is stored once"
    return "Look before you repeat it"
