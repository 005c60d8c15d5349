"""Receives of FIFO queues that a client may repeat by their `ReceiveRequestAttemptId`.

A client whose answer was lost repeats its receive under the same id. It gets the same messages under
the same handles, and their visibility timeouts begin again. This memory belongs to a process: behind
a restart, or at another process, a repeat is a new receive, and the messages of the first come back
when their visibility timeouts end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from millstream.queue.model.message import Message

KEPT_MS = 300_000
"""How long AWS knows an id."""

BYTES_MAX = 32 * 1024 * 1024
"""The most bytes of messages that are kept; the oldest receives are forgotten first."""

MESSAGE_BYTES = 1_000
"""What a message takes beside its value."""


class Received(NamedTuple):
    """The messages of a receive."""

    at_ms: int
    messages: Sequence[Message]

    @property
    def size(self) -> int:
        """The bytes that the messages take."""
        return sum(MESSAGE_BYTES + len(message.value or b"") for message in self.messages)


Key = tuple[str, str]
"""The seed of a queue, and the id of a receive."""


class ReceiveAttempts:
    """The receives that can be repeated; belongs to one event loop."""

    def __init__(self) -> None:
        self._received: OrderedDict[Key, Received] = OrderedDict()
        self._size = 0

    def find(self, seed: str, attempt: str, now_ms: int) -> Received | None:
        """Return the receive of an id within five minutes."""
        received = self._received.get((seed, attempt))
        if received is None or not 0 <= now_ms - received.at_ms < KEPT_MS:
            return None
        return received

    def keep(self, seed: str, attempt: str, received: Received) -> None:
        """Keep a receive, and forget those that are too old or too many."""
        self._forget((seed, attempt))
        self._received[seed, attempt] = received
        self._size += received.size
        oldest_ms = received.at_ms - KEPT_MS
        while self._received:
            key, first = next(iter(self._received.items()))
            if self._size <= BYTES_MAX and first.at_ms > oldest_ms:
                break
            self._forget(key)

    def _forget(self, key: Key) -> None:
        received = self._received.pop(key, None)
        if received is not None:
            self._size -= received.size
