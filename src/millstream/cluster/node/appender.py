"""Appending: how a leader writes entries to the shared log, and learns whether they were stored.

An append names the last entry that this node has read. If it succeeds, no entry came in between.
After an append with an unsure outcome, the node appends only a barrier at the same position, until
the entry there is known. If this takes too long, the node steps down and reads the log as every
follower does.

A commit waits while the servers of the shared log elect their leader: nothing was sent, so the
commit is tried again. Once the log was unreachable for `settle_timeout_s`, commits are refused at
once until an append succeeds: callers then wait in their clients, and not in a queue in front of
this node.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, SharedEntry, encode
from millstream.cluster.node.position import LogProgress
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import (
    Gone,
    Overtaken,
    SharedLog,
    Stored,
    Unreachable,
    Unsure,
)
from millstream.errors import NoQuorum, NotLeader, OutcomeUnknown

PAUSE_S = 0.05
"""Between two tries of a leader that cannot reach the shared log."""

Pause = Callable[[float], object]
"""Waits for a number of seconds; returns True at once if the node is stopping."""


class Appender:
    """A node's appends, one at a time, in the member's turn."""

    def __init__(
        self,
        progress: LogProgress,
        shared: SharedLog,
        *,
        settings: NodeSettings,
        not_leader: Callable[[], NotLeader],
        pause: Pause,
    ) -> None:
        """`not_leader` makes the error for callers once another node leads."""
        self.shared = shared
        self.barrier_s = 0.0
        """How long the last barrier took."""
        self.begun = self.proven = 0
        """Numbers of appends: the last that was begun, and the last that is known to be stored."""
        self._progress, self._clock, self._settings = progress, progress.clock, settings
        self._not_leader, self._pause = not_leader, pause
        self._away_since_s: float | None = None
        """Since when the shared log is unreachable; None after a stored append."""

    def send_commit(self, body: bytes) -> Position:
        """Append a commit, in pieces if it is large. Raises like `_send`."""
        progress = self._progress
        progress.chunks = []  # pieces of an abandoned commit
        name = secrets.token_bytes(entries.ID_BYTES)
        piece_bytes_max = min(entries.CHUNK_BYTES_MAX, self.shared.entry_bytes_max - 1024)
        if len(body) <= piece_bytes_max:
            return self._send(entries.COMMIT, body, name)
        pieces = entries.cut(body, piece_bytes_max)
        for piece in pieces:
            try:
                self._send(entries.CHUNK, piece, name)
            except OutcomeUnknown as error:  # a piece does not count without the last entry
                raise NoQuorum(f"nothing was stored: {error.message}") from error
            progress.chunks.append(b"")
        position = self._send(
            entries.CHUNKED, encode(entries.ChunkedBody(len(pieces), len(body))), name
        )
        progress.chunks = []
        return position

    def send_barrier(self, *, waits: bool = True) -> None:
        """Append a barrier as a proof that this node leads. Raises like `_send`."""
        began_s = self._clock.seconds()
        position = self._send(
            entries.BARRIER, b"", secrets.token_bytes(entries.ID_BYTES), waits=waits
        )
        self.barrier_s = self._clock.seconds() - began_s
        if entries.is_noted(entries.BARRIER, position.sequence) and not self._progress.chunks:
            self._progress.write(position)

    def append(self, entry: SharedEntry) -> Position:
        """Append behind the position, and move the position. Raises the errors of the shared log."""
        data = encode(entry)
        self.begun += 1
        number = self.begun
        self.shared.append(
            data,
            after=self._progress.position.sequence,
            timeout_s=self._settings.append_timeout_s,
        )
        self.proven, self._away_since_s = number, None
        self._progress.leadership.sent(self._clock.seconds())
        return self._progress.advance(data, entry)

    def entry(
        self, kind: int, body: bytes, *, name: bytes = b"", epoch: int | None = None
    ) -> SharedEntry:
        """Return an entry that would follow the position."""
        position = self._progress.position
        return SharedEntry(
            kind=kind,
            epoch=position.epoch if epoch is None else epoch,
            id=name or secrets.token_bytes(entries.ID_BYTES),
            previous=position.hash,
            time_ms=max(position.time_ms, self._clock.boot_ms()),
            wall_ms=self._clock.wall_ms(),
            body=body,
        )

    def _send(self, kind: int, body: bytes, name: bytes, *, waits: bool = True) -> Position:
        """Append an entry as the leader, and return once it is certainly stored.

        With `waits` the call waits for a shared log that takes no entries at present. Raises
        `NotLeader` or `NoQuorum` if the entry is certainly not stored, and `OutcomeUnknown`.
        """
        while True:
            entry = self.entry(kind, body, name=name)
            try:
                return self.append(entry)
            except Unreachable as error:
                if not (self._may_wait() and waits) or self._pause(PAUSE_S):
                    raise _no_quorum(self.shared.place, error) from error
                continue
            except (Overtaken, Unsure) as error:
                deadline_s = self._clock.seconds() + self._settings.settle_timeout_s
                position = self._settle(entry, deadline_s, error)
            if position is not None:
                return position

    def _may_wait(self) -> bool:
        """Whether the shared log has been unreachable for a short time only."""
        now_s = self._clock.seconds()
        if self._away_since_s is None:
            self._away_since_s = now_s
        return now_s - self._away_since_s < self._settings.settle_timeout_s

    def _settle(self, entry: SharedEntry, deadline_s: float, cause: Exception) -> Position | None:
        """Find out whether an entry was stored, and return its position.

        Return None if a barrier of this node lies in its place: then the entry can never be stored.
        """
        progress = self._progress
        # Alternatives: asking for the end of the log does not help, because the unsure entry may
        # still be stored after the answer. Only another entry at its sequence excludes that, and a
        # barrier is the cheapest.
        number, barriers = self.begun, set[bytes]()
        may_fit = isinstance(cause, Unsure)
        while self._clock.seconds() < deadline_s:
            try:
                following = self.shared.read(
                    progress.position.sequence, bytes_max=1, timeout_s=0 if may_fit else PAUSE_S
                )
                if following:
                    return self._settled(following[0], entry, number, barriers)
                if may_fit:
                    barrier = self.entry(entries.BARRIER, b"")
                    barriers.add(barrier.id)
                    self.append(barrier)
                    return None
            except Overtaken:
                may_fit = False
            except (Unsure, Unreachable):
                if self._pause(PAUSE_S):
                    break
            except Gone:  # trimmed while this node slept, or lost: the loop finds out which
                break
            except Differs as error:
                progress.halt(str(error))
                break
        progress.lose()
        raise OutcomeUnknown(
            f"the shared log did not say within {self._settings.settle_timeout_s:g} s whether it has "
            "the commit; look whether it is there, or repeat it under a producer's sequence",
            cause=str(cause),
        )

    def _settled(
        self, stored: Stored, entry: SharedEntry, number: int, barriers: set[bytes]
    ) -> Position | None:
        stored_entry = entries.decode(stored.sequence, stored.data)
        if stored_entry == entry:
            self.proven = number
            return self._progress.advance(stored.data, entry)
        if stored_entry.id in barriers:
            self._progress.advance(stored.data, stored_entry)
            return None
        successor = None
        if stored_entry.kind == entries.EPOCH:
            successor = entries.decode_body(stored.sequence, EpochBody, stored_entry.body)
        self._progress.lose(successor)
        raise self._not_leader()


def _no_quorum(place: str, error: Exception) -> NoQuorum:
    """Return the error for a shared log that takes no entries; nothing was sent."""
    return NoQuorum(
        f"{place} cannot be reached, or too few of its servers answer ({error}); "
        "nothing was stored, and reads go on. Try again soon"
    )
