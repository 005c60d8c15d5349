"""Repeats: the messages that a queue drops, because it has seen a message with the same id.

A row per digest lists the last messages with the id: the end of the window of each, and its claim
id. The spec decides when a message counts:

    dedup_while ""          within the window, in every state but cancelled
    dedup_while "waiting"   while the message waits, also for a retry
    dedup_while "running"   while the message waits or is in flight
    dedup_while states      while the message is in one of them: "delayed,in_flight"

A second row per message, by the end of its window, finds the digests to forget.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from millstream.format import keys
from millstream.format.encodings import encode_u64
from millstream.format.ids import bucket_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import AVAILABLE, CANCELLED, IN_FLIGHT, NONE
from millstream.queue.model.state import QueueState
from millstream.store.commit.transaction import WriteTransaction

FORGOTTEN_PER_PLACED = 2
"""The most old digests forgotten per new digest that deduplication remembers."""

SEEN_KEPT = 8
"""The most messages kept per digest, for messages that are not repeats of each other."""

UNHELD_KEPT = 256
"""As `SEEN_KEPT`, if a message that waits keeps no repeats away: many messages may wait with the same id."""

WITH_CLAIMS = b"\x01"
"""The first byte of a row with claim ids. Older rows have only the ends of windows, 8 bytes each."""

NOT_PLACED = -1
"""The claim id of a message that this operation is about to place."""

UNKNOWN_CLAIM = 2**64 - 1
"""The claim id of a message that was placed before rows had claim ids."""

NO_CLAIM = (NOT_PLACED, UNKNOWN_CLAIM)
"""Claim ids that lead to no message."""


class Seen(Struct, frozen=True):
    """A message that was placed with a dedup id."""

    until_ms: int
    """The end of its window: the wall time of its append, plus the window."""
    claim_id: int = UNKNOWN_CLAIM


def decode_seen(value: bytes | None) -> list[Seen]:
    """Decode the messages with a digest."""
    data = value or b""
    if len(data) % 8 == 0:
        return [Seen(number) for number in _numbers(data)]
    numbers = _numbers(data[1:])
    return [Seen(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


def encode_seen(messages: Iterable[Seen]) -> bytes:
    """Encode the messages with a digest."""
    pairs = [encode_u64(seen.until_ms) + encode_u64(seen.claim_id) for seen in messages]
    return WITH_CLAIMS + b"".join(pairs)


def _numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)]


class Repeats:
    """The digests of a queue during an operation; `remember` writes the new ones."""

    def __init__(self, tx: WriteTransaction, queue: QueueState) -> None:
        self._tx = tx
        self._queue = queue
        self._known: dict[bytes, list[Seen]] = {}
        """Digests → the messages with the digest."""
        self._new: list[bytes] = []
        self._first_ms = 2**62
        """The earliest append time among the new messages: the progress of routing."""

    def has(self, digest: bytes, at_ms: int) -> bool:
        """Return whether a message appended at `at_ms` is a repeat; otherwise remember its digest."""
        self._first_ms = min(self._first_ms, at_ms)
        if self.original(digest, at_ms) is not None:
            return True
        until_ms = at_ms + self._queue.spec.dedup_window_ms
        self._known[digest].append(Seen(until_ms, NOT_PLACED))
        self._new.append(digest)
        return False

    def original(self, digest: bytes, at_ms: int) -> Seen | None:
        """Return the message that a message appended at `at_ms` repeats; None if no
        earlier message has this digest.
        """
        if digest not in self._known:
            stored = self._tx.get(keys.seen(self._queue.queue_id, digest))
            self._known[digest] = decode_seen(stored)
        counting = (earlier for earlier in self._known[digest] if self._counts(earlier, at_ms))
        return next(counting, None)

    def _counts(self, earlier: Seen, at_ms: int) -> bool:
        """Return whether an earlier message with the same digest makes one appended at `at_ms` a repeat."""
        if self._queue.spec.dedup_while:
            return self._holds(earlier)
        # A log that a sync delivered late may hold messages older than the remembered ones.
        window_ms = self._queue.spec.dedup_window_ms
        is_within = earlier.until_ms - 2 * window_ms < at_ms < earlier.until_ms
        return is_within and self._state(earlier.claim_id)[0] != CANCELLED

    def _holds(self, earlier: Seen) -> bool:
        """Return whether a message is in a state in which it keeps its repeats away."""
        holding = self._queue.spec.holding_states
        if earlier.claim_id == NOT_PLACED:
            return "available" in holding or "delayed" in holding
        state, until_ms = self._state(earlier.claim_id)
        is_future = until_ms > self._tx.store_ms
        if state == IN_FLIGHT:
            # A message whose lease has expired waits again, also before a commit notes that.
            return ("in_flight" if is_future else "available") in holding
        return state == AVAILABLE and ("delayed" if is_future else "available") in holding

    def _may_hold(self, earlier: Seen) -> bool:
        """Return whether a message keeps its repeats away now or later: the message has not ended."""
        return earlier.claim_id == NOT_PLACED or self._state(earlier.claim_id)[0] in (
            AVAILABLE,
            IN_FLIGHT,
        )

    def _state(self, claim_id: int) -> tuple[int, int]:
        """Return the state of a message, and the time in its slot."""
        if claim_id in NO_CLAIM:
            return NONE, 0
        bucket_id = bucket_of(claim_id)
        bucket = self._tx.entity(keys.bucket(self._queue.queue_id, bucket_id), Bucket)
        slot = claim_id - bucket_id
        if slot >= len(bucket.states):
            return NONE, 0
        return bucket.states[slot], bucket.until_ms[slot]

    def remember(self, placed: Iterable[tuple[bytes, int, int]]) -> None:
        """Write the digests of placed messages, and delete expired digests.

        A message appended a full window before the records routed now can have no further repeats,
        however late they are routed.
        """
        if not self._new:
            return
        tx, queue_id, messages = self._tx, self._queue.queue_id, self._known
        window_ms = self._queue.spec.dedup_window_ms
        changed = set(self._new)
        for digest, at_ms, claim_id in placed:
            at = messages[digest].index(Seen(at_ms + window_ms, NOT_PLACED))
            messages[digest][at] = Seen(at_ms + window_ms, claim_id)
            tx.put(keys.seen_until(queue_id, at_ms + window_ms, digest), b"")
        changed |= self._forget_some(FORGOTTEN_PER_PLACED * len(self._new))
        states = self._queue.spec.holding_states
        kept = UNHELD_KEPT if states and "available" not in states else SEEN_KEPT
        for digest in changed:
            seen_key = keys.seen(queue_id, digest)
            newest = sorted(messages[digest], key=lambda earlier: earlier.until_ms)[-kept:]
            if newest:
                tx.put(seen_key, encode_seen(newest))
            else:
                tx.erase(seen_key)

    def _forget_some(self, limit: int) -> set[bytes]:
        """Forget expired messages that do not hold their digest; return the changed digests."""
        tx, queue_id, spec = self._tx, self._queue.queue_id, self._queue.spec
        over_ms = self._first_ms - spec.dedup_window_ms
        start = keys.seen_until(queue_id, 0, b"")
        stop = keys.seen_until(queue_id, max(0, over_ms), b"")
        changed: set[bytes] = set()
        for key, _ in tx.scan(start, stop, limit=limit):
            tx.erase(key)
            digest, until_ms = keys.seen_digest(key), keys.seen_time(key)
            if digest not in self._known:
                self._known[digest] = decode_seen(tx.get(keys.seen(queue_id, digest)))
            for earlier in [
                earlier for earlier in self._known[digest] if earlier.until_ms == until_ms
            ]:
                self._known[digest].remove(earlier)
                changed.add(digest)
                if spec.dedup_while and self._may_hold(earlier):
                    later = Seen(self._first_ms + spec.dedup_window_ms, earlier.claim_id)
                    self._known[digest].append(later)
                    tx.put(keys.seen_until(queue_id, later.until_ms, digest), b"")
        return changed
