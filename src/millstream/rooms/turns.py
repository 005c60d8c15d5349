"""Turns: the frames of one connection to a room are stored in their order, and none behind a lost one.

A server hands in frames without waiting for the answers to those before them. If the commit of one
fails, the frames that follow it must not be stored: their client sends all of them again, in order,
and finds out what is stored by the highest number. So each frame that follows one without an answer
is stored only if that one has run here, and no commit has failed since.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.errors import OutOfSequence
from millstream.store.commit.transaction import WriteTransaction

CONNECTIONS_MAX = 65_536
"""Connections whose last turn is remembered; one that was forgotten begins anew, once."""


class Turn(Struct, frozen=True, array_like=True):
    """One frame's place among those of its connection."""

    connection: str
    number: int
    """Counts the frames of the connection by one."""
    follows: bool
    """Whether the frame before it had no answer yet when it was handed in."""


class LastTurns:
    """The last frame of each connection that has run in this process; under the store's mutex."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def take(self, turn: Turn, failures: int) -> None:
        """Let a frame run. Raises `OutOfSequence` if the one before it may not be stored."""
        last = self._last.pop(turn.connection, None)
        if turn.follows and last != (turn.number - 1, failures):
            raise OutOfSequence(
                "what this client sent before may not be stored, so this is not stored either: it "
                "enters the room again, and sends again what is missing",
                expected=turn.number - 1,
            )
        self._last[turn.connection] = (turn.number, failures)
        if len(self._last) > CONNECTIONS_MAX:
            del self._last[next(iter(self._last))]


def take_turn(tx: WriteTransaction, turn: Turn) -> None:
    """Let a frame run behind the one before it, or refuse it."""
    state = tx.state
    state.memory.of(LastTurns).take(turn, state.failures)
