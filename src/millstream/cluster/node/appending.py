"""Appending: how a leader's entries get into the shared log, and how it finds out whether they did.

An append names the last entry that this node has seen. If it succeeds, nothing came in between.
After an append whose outcome is unsure, nothing is appended but a barrier at the same place, until
what stands there is known. If that takes too long, the node steps down: it finds out as every follower
does, by reading.

A commit waits while the servers of the shared log elect one of them to lead: nothing was sent, so the
commit is tried again. Once the log was away for `settle_timeout_s`, commits are refused at once until
an append succeeds: callers then wait in their clients, and not in a line in front of this node.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, SharedEntry, encode
from millstream.cluster.node import refusal
from millstream.cluster.node.position import Footing
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
"""Waits for so many seconds; answers True, at once, if the node is stopping."""


class Appender:
    """A node's appends, one at a time; everything happens in the member's turn."""

    def __init__(
        self,
        footing: Footing,
        shared: SharedLog,
        *,
        settings: NodeSettings,
        not_leader: Callable[[], NotLeader],
        pause: Pause,
    ) -> None:
        """`not_leader` makes what a caller is told once another node leads."""
        self.shared = shared
        self.barrier_s = 0.0
        """How long the last barrier took."""
        self.begun = self.proven = 0
        """Appends by number: how many were begun, and the last that is known to be stored."""
        self._footing, self._clock, self._settings = footing, footing.clock, settings
        self._not_leader, self._pause = not_leader, pause
        self._away_since_s: float | None = None
        """Since when nothing could be sent to the shared log; None if the last append was stored."""

    def send_commit(self, body: bytes) -> Position:
        """Append a commit, in pieces if it is large; raises as `_send` does."""
        footing = self._footing
        footing.chunks = []  # of a commit that was given up
        name = secrets.token_bytes(entries.ID_BYTES)
        most = min(entries.CHUNK_BYTES_MAX, self.shared.entry_bytes_max - 1024)
        if len(body) <= most:
            return self._send(entries.COMMIT, body, name)
        pieces = entries.cut(body, most)
        for piece in pieces:
            try:
                self._send(entries.CHUNK, piece, name)
            except OutcomeUnknown as error:  # without the last entry, no piece of it counts
                raise NoQuorum(f"nothing was stored: {error.message}") from error
            footing.chunks.append(b"")
        position = self._send(
            entries.CHUNKED, encode(entries.ChunkedBody(len(pieces), len(body))), name
        )
        footing.chunks = []
        return position

    def send_barrier(self, *, waits: bool = True) -> None:
        """Show the others, and oneself, that this node leads; raises as `_send` does."""
        began_s = self._clock.seconds()
        position = self._send(
            entries.BARRIER, b"", secrets.token_bytes(entries.ID_BYTES), waits=waits
        )
        self.barrier_s = self._clock.seconds() - began_s
        if entries.is_noted(entries.BARRIER, position.sequence) and not self._footing.chunks:
            self._footing.write(position)

    def append(self, entry: SharedEntry) -> Position:
        """Append behind the position, and go there; raises what the shared log does."""
        data = encode(entry)
        self.begun += 1
        number = self.begun
        self.shared.append(
            data,
            after=self._footing.position.sequence,
            timeout_s=self._settings.append_timeout_s,
        )
        self.proven, self._away_since_s = number, None
        self._footing.leadership.sent(self._clock.seconds())
        return self._footing.advance(data, entry)

    def entry(
        self, kind: int, body: bytes, *, name: bytes = b"", epoch: int | None = None
    ) -> SharedEntry:
        """An entry that would stand behind the position."""
        position = self._footing.position
        return SharedEntry(
            kind,
            position.epoch if epoch is None else epoch,
            name or secrets.token_bytes(entries.ID_BYTES),
            position.hash,
            max(position.time_ms, self._clock.boot_ms()),
            self._clock.wall_ms(),
            body,
        )

    def _send(self, kind: int, body: bytes, name: bytes, *, waits: bool = True) -> Position:
        """Append an entry as the leader; returns once it is certain that it is stored.

        With `waits` it waits for a shared log that takes nothing just now. Raises `NotLeader` and
        `NoQuorum`, if it is certain that the entry is not stored, and `OutcomeUnknown`.
        """
        while True:
            entry = self.entry(kind, body, name=name)
            try:
                return self.append(entry)
            except Unreachable as error:
                if not (self._may_wait() and waits) or self._pause(PAUSE_S):
                    raise refusal.no_quorum(self.shared.place, error) from error
                continue
            except (Overtaken, Unsure) as error:
                deadline_s = self._clock.seconds() + self._settings.settle_timeout_s
                position = self._settle(entry, deadline_s, error)
            if position is not None:
                return position

    def _may_wait(self) -> bool:
        """Whether the shared log, which took nothing just now, was away for a short time only."""
        now_s = self._clock.seconds()
        if self._away_since_s is None:
            self._away_since_s = now_s
        return now_s - self._away_since_s < self._settings.settle_timeout_s

    def _settle(self, entry: SharedEntry, deadline_s: float, cause: Exception) -> Position | None:
        """Find out what stands behind the position: the entry, or a barrier (None), or another's.

        A barrier that is stored there shows that the entry never can be.
        """
        footing = self._footing
        number, barriers = self.begun, set[bytes]()
        may_fit = isinstance(cause, Unsure)
        while self._clock.seconds() < deadline_s:
            try:
                found = self.shared.read(
                    footing.position.sequence, bytes_max=1, timeout_s=0 if may_fit else PAUSE_S
                )
                if found:
                    return self._settled(found[0], entry, number, barriers)
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
                footing.halt(str(error))
                break
        footing.lose()
        raise OutcomeUnknown(
            f"the shared log did not say within {self._settings.settle_timeout_s:g} s whether it has "
            "the commit; look whether it is there, or repeat it under a producer's sequence",
            cause=str(cause),
        )

    def _settled(
        self, found: Stored, entry: SharedEntry, number: int, barriers: set[bytes]
    ) -> Position | None:
        other = entries.decode(found.sequence, found.data)
        if other == entry:
            self.proven = number
            return self._footing.advance(found.data, entry)
        if other.id in barriers:
            self._footing.advance(found.data, other)
            return None
        successor = None
        if other.kind == entries.EPOCH:
            successor = entries.decode_body(found.sequence, EpochBody, other.body)
        self._footing.lose(successor)
        raise self._not_leader()
