"""The flight of a producer: the transmissions that a store has and has not answered, oldest first.

A second transmission leaves before the first is answered, so that a round trip or a sync does not
keep the next messages waiting. The order and the single storage hold by the sequences of the producer:

1. A transmission follows another only into logs to which the other goes too, and only if these logs
   know the producer. A log then refuses the follower with `OutOfSequence` unless it has the other.
2. Answers count in the order of sending. The answer of a follower waits.
3. A failure counts once all transmissions are answered. Refused followers leave the flight, and are
   sent again after the failure is dealt with. So nothing is sent beside a repeat.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from millstream.errors import MillstreamError
from millstream.record import Producer
from millstream.streaming.transmission import Transmission, unknown_error_of


class Flight:
    """Transmissions on their way, oldest first; the caller holds the lock of the producer."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.sent: list[Transmission] = []
        self.pauses = False
        """Whether the repeat of the first transmission waits for a pause."""

    @property
    def is_full(self) -> bool:
        """Whether no further transmission may leave now."""
        if not self.sent:
            return False
        head = self.sent[0]
        return len(self.sent) >= self.most or head.answer is not None or head.tries > 0

    @property
    def repeats(self) -> bool:
        """Whether the first transmission is to be sent again."""
        return bool(self.sent) and not self.sent[0].is_out and self.sent[0].answer is None

    def pause_left_s(self, now_s: float) -> float:
        """Return the remaining pause before the repeat; 0 if the repeat may leave."""
        return max(0.0, self.sent[0].resumes_s - now_s) if self.pauses else 0.0

    def repeat(self) -> Transmission:
        """Return the first transmission, which a sender carries out again."""
        self.sent[0].is_out = True
        return self.sent[0]

    def covers(self, lanes: set[int]) -> bool:
        """Return whether the first transmission goes to all these lanes."""
        return lanes <= {portion.block.lane for portion in self.sent[0].portions}

    def _next_sequences(self, stored: Mapping[int, int]) -> dict[int, int]:
        """Return the next sequence of each lane, behind all transmissions in flight."""
        sequences = dict(stored)
        for transmission in self.sent:
            for portion in transmission.portions:
                assert portion.producer is not None
                sequences[portion.block.lane] = portion.producer.sequence + 1
        return sequences

    def launch(
        self,
        transmission: Transmission,
        identity: Producer,
        stored: Mapping[int, int],
        *,
        now_s: float,
    ) -> None:
        """Append a transmission that a sender now carries out.

        Each portion gets the next sequence of its lane; `stored` has those behind the stored portions.
        """
        sequences = self._next_sequences(stored)
        for portion in transmission.portions:
            sequence = sequences.get(portion.block.lane, 0)
            portion.producer = replace(identity, sequence=sequence)
            sequences[portion.block.lane] = sequence + 1
        transmission.began_s = now_s
        transmission.command = None  # its sequences may be new
        transmission.follows = bool(self.sent)
        transmission.is_out = True
        self.sent.append(transmission)

    def answered(self, transmission: Transmission, answer: list[int] | MillstreamError) -> None:
        """Note the answer to a transmission; an answer after the end of the producer is ignored."""
        transmission.answer = answer
        transmission.is_out = False

    def decided(self) -> Transmission | None:
        """Return the first transmission if its answer counts now."""
        head = self.sent[0] if self.sent else None
        if head is None or head.answer is None:
            return None
        if isinstance(head.answer, MillstreamError) and any(
            follower.answer is None for follower in self.sent[1:]
        ):
            return None
        return head

    def land(self) -> None:
        """Remove the first transmission. Its messages are settled, or follow in other transmissions."""
        del self.sent[0]
        self.pauses = False

    def again(self, head: Transmission, *, pauses: bool) -> None:
        """Let the first transmission be sent again."""
        head.answer = None
        head.follows = False
        self.pauses = pauses

    def take_back(self) -> list[Transmission]:
        """Remove and return the refused transmissions behind the first.

        If the first was certainly not stored, neither were they. A stored follower stays: it proves
        that the first was stored, too.
        """
        head, *followers = self.sent
        refused = [
            transmission
            for transmission in followers
            if isinstance(transmission.answer, MillstreamError)
        ]
        self.sent = [transmission for transmission in self.sent if transmission not in refused]
        for transmission in refused:
            transmission.answer = None
            transmission.tries = 0
            transmission.is_unknown = transmission.is_unknown and head.is_unknown
        return refused

    def end(self) -> list[Transmission]:
        """Remove and return all transmissions: the producer ends."""
        sent, self.sent = self.sent, []
        self.pauses = False
        return sent


def error_in_flight(
    transmission: Transmission, error: MillstreamError, unsent_error: MillstreamError
) -> MillstreamError:
    """Return the error of a transmission in flight when the producer ends with an error."""
    if transmission.is_unknown or (transmission.follows and transmission.is_out):
        return unknown_error_of(error)
    return unsent_error if transmission.follows else error
