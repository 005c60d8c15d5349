"""The rules for requests whose connection was lost, or that a server refused for now; no I/O.

A request that writes nothing is sent again. So is a request with a harmless repeat, such as an
append under a producer's sequence: the server recognises the repeat, and stores the records once.
The outcome of all other requests is unknown, and the caller gets `OutcomeUnknown`, never a failure.
A command's traits declare its kind.

A server that answers `NotLeader` or `NoQuorum` has not executed the request. The client then
repeats even a write, after a growing pause.
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
"""Between attempts to connect: exponential backoff, with jitter between half and full length."""

QUORUM_DELAY_S_MAX = 2.0
"""The longest pause between two tries at a cluster without a quorum: mostly, it is back within
seconds."""


def delay_s(attempt: int, chance: float, *, most_s: float = DELAY_S_MAX) -> float:
    """Return the pause before an attempt; 0 before the first."""
    if attempt == 0:
        return 0.0
    return float(min(most_s, DELAY_S_FIRST * 2 ** min(attempt, 20)) * (0.5 + chance / 2))


class RepeatFate(Enum):
    """The handling of a request that was sent, and not answered."""

    ASK_AGAIN = auto()
    """The request changes nothing, or the server recognises the repeat."""
    WAIT_AGAIN = auto()
    """The request waits: its caller sends it again, for the remaining time."""
    TELL = auto()
    """The request may have been executed."""


class Interrupted(MillstreamError):
    """The connection of a waiting request was lost, or the server refused it; never seen by users.

    Data: `refusal`, the error of the server, if there is one.
    """


def fate_of(command: Command[Any]) -> RepeatFate:
    """Return the handling of a command with an unknown outcome."""
    if not is_repeatable(command):
        return RepeatFate.TELL
    return RepeatFate.WAIT_AGAIN if waits(command) else RepeatFate.ASK_AGAIN


def unknown(command: Command[Any], why: str) -> OutcomeUnknown:
    """Return the error for a command that may have been executed."""
    name = type(command).__name__
    return OutcomeUnknown(
        f"{why}: {name} may have been carried out, or not. {_advice(command)}", cause=why
    )


def unreachable(command: Command[Any], *, sent: bool, why: MillstreamError) -> MillstreamError:
    """Return the error for a command when the server stays away, or the session ends."""
    if sent and command.writes and not (isinstance(why, Closed) and _only_leases(command)):
        return unknown(command, why.message)
    return type(why)(why.message, **why.data)


def _only_leases(command: Command[Any]) -> bool:
    """Whether the command leaves only leases behind, which end by themselves."""
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
