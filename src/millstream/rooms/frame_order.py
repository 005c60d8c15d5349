"""Turns: the frames of a connection are stored in order, and never behind a lost frame.

A server executes frames without waiting for the answers to earlier frames. If the commit of a frame
fails, later frames must not be stored: their client sends all of them again, in order, and learns
from the highest stored number which frames to send. So a frame that follows an unanswered frame is
stored only if the earlier frame has run here, and no commit has failed since.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.errors import OutOfSequence
from millstream.store.commit.transaction import WriteTransaction

CONNECTIONS_MAX = 65_536
"""Connections whose last turn is remembered; a forgotten connection starts again once."""


class Turn(Struct, frozen=True, array_like=True):
    """The position of a frame among the frames of its connection."""

    connection: str
    number: int
    """Counts the frames of the connection."""
    follows: bool
    """Whether the frame before had no answer yet when this frame was executed."""


class LastTurns:
    """The last frame of each connection that has run in this process; under the store's mutex."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def take(self, turn: Turn, failures: int) -> None:
        """Let a frame run. Raises `OutOfSequence` if the frame before may not be stored."""
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
    """Let a frame run behind its predecessor, or refuse it."""
    state = tx.state
    state.memory.of(LastTurns).take(turn, state.failures)
