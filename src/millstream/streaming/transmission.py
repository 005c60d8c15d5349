"""A transmission: messages that a single command stores, pauses between attempts, and errors."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct

from millstream.errors import (
    Denied,
    Fenced,
    InvalidInput,
    MillstreamError,
    NotFound,
    OutcomeUnknown,
    WriteFailed,
)
from millstream.streaming.gathered_block import BLOCK_BYTES_MAX, BlockPortion, GatheredBlock
from millstream.streaming.options import EPOCH_BITS

PORTIONS_MAX = 100
"""Portions of a transmission, which go to several logs or have several shapes."""

IDLE_S = 5.0
"""How often an idle sender looks for messages: an interrupt may keep a caller from waking it."""

PAUSE_S_FIRST = 0.005
PAUSE_S_MAX = 0.5
"""Between two attempts of a transmission; the pause doubles."""

REFUSALS = (InvalidInput, Denied, NotFound)
"""Errors by which a store refuses messages and stays usable for others."""


class SenderRest(Struct, frozen=True):
    """Wait until the producer wakes its sender; call `rested` if `seconds` pass before."""

    seconds: float


class Transmission(Struct, eq=False):
    """Portions of blocks that a single command stores."""

    portions: list[BlockPortion]
    command: Any = None
    """The command, once it is built: a repeat sends the same bytes."""
    began_s: float | None = None
    tries: int = 0
    resumes_s: float = 0.0
    """The end of the pause after the last failure."""
    failed_ms: int = 0
    """The wall time of the last failure."""
    is_unknown: bool = False
    """Whether an attempt may have been stored."""
    follows: bool = False
    """Whether it was sent before the transmission ahead of it was answered."""
    is_out: bool = False
    """Whether a sender carries it out."""
    answer: list[int] | MillstreamError | None = None
    """The offset of the first message of each portion, or the error; None: not answered."""

    def is_later(self, error: Fenced, epoch: int) -> bool:
        """Return whether the producer is later than the stored one, although its epoch is lower.

        Then the clock of this machine is behind, or both began in the same millisecond. Otherwise a
        later producer has the name, or the store itself was fenced.
        """
        stored: int = error.data.get("epoch", 0)
        if not 0 < epoch < stored:
            return False
        stored_ms = stored >> EPOCH_BITS
        return stored_ms == epoch >> EPOCH_BITS or stored_ms >= self.failed_ms


def taken_portions(blocks: deque[GatheredBlock], singles_max: int) -> list[BlockPortion]:
    """Remove blocks from the front, up to the bounds of a transmission, and return them as portions.

    A block of up to `singles_max` messages becomes a portion per message.
    """
    portions: list[BlockPortion] = []
    size = 0
    while blocks and len(portions) < PORTIONS_MAX:
        block = blocks[0]
        size += block.bytes
        if portions and size > BLOCK_BYTES_MAX:
            break
        count = len(block.messages)
        step = count if count > singles_max else 1
        portions += [BlockPortion(block, start, start + step) for start in range(0, count, step)]
        blocks.popleft()
    return portions


def pause_s(tries: int) -> float:
    """Return the pause after so many failed attempts."""
    return float(min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(tries - 1, 20)))


def outcome_error(error: Exception) -> MillstreamError:
    """Return an error of the tree; an error of another kind leaves the outcome unknown."""
    if isinstance(error, MillstreamError):
        return error
    text = f"{type(error).__name__}: {error}"
    return OutcomeUnknown(f"the outcome is unknown: {text}", cause=text)


def unknown_error_of(error: MillstreamError) -> MillstreamError:
    """Return the error of messages that may have been stored before the producer ended."""
    return OutcomeUnknown(
        f"the messages may have been stored, or not: {_cause_of(error)}. The producer has ended: look "
        "which messages are there, and hand the others to a new producer",
        **error.data,
    )


def unsent_error_of(error: MillstreamError) -> MillstreamError:
    """Return the error of messages that were never sent, because an earlier message failed."""
    text = (
        f"not stored, because an earlier message of the producer failed: {_cause_of(error)}. Hand the "
        "message to a new producer"
    )
    if isinstance(error, OutcomeUnknown):
        return WriteFailed(text, **error.data)
    return type(error)(text, **error.data)


def _cause_of(error: MillstreamError) -> str:
    """Return what failed, without the advice for a caller of `append`."""
    return str(error.data.get("cause", error.message))
