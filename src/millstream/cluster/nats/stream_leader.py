"""The lead of the stream is kept away from the node that leads the cluster.

When the machine that leads the stream is lost, its other servers wait 4 to 9 seconds until they elect
another: NATS has that so, and nothing can be set. So a node that leads has another node's server lead
the stream. If its machine is lost, the stream goes on at once, and the next node can take over as soon
as it misses its leader. It decides nothing that safety depends on.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from millstream.clock import Clock
from millstream.cluster.shared_log import Gone, Unreachable

_logger = logging.getLogger("millstream.cluster")

MOVE_S = 2.0
"""How long the stream may take to have another leading server; writes wait meanwhile."""
AGAIN_S = 10.0
"""How long it is left where it is after a move, whatever came of it."""
HEARD_NS = 1_800_000_000
"""A server that the leading one has not heard of for so long may be lost. Followers wait longer until
they campaign: so a server that was lost with the node that led is never taken for sound."""


class StreamReplica(msgspec.Struct, frozen=True):
    """A server that follows the one which leads the stream."""

    name: str
    current: bool = False
    """Whether it has all that the leading one has. A server that has just been lost still is."""
    offline: bool = False
    active: int = 0
    """How many nanoseconds ago the leading one last heard of it; it does so every second."""

    @property
    def is_sound(self) -> bool:
        """Whether it could lead: it has everything, and was there a moment ago."""
        return self.current and not self.offline and self.active < HEARD_NS


class StreamServers(msgspec.Struct, frozen=True):
    """The servers that keep a stream, as one of them last said."""

    leader: str = ""
    replicas: list[StreamReplica] = []

    @property
    def has_quorum(self) -> bool:
        """Whether most of them were there a moment ago; a server that led and is alone still answers."""
        there = 1 + sum(not one.offline and one.active < HEARD_NS for one in self.replicas)
        return 2 * there > 1 + len(self.replicas)


class LedStream(Protocol):
    """A shared log on servers, one of which leads it."""

    @property
    def servers(self) -> StreamServers:
        """Which servers there are, as was heard last."""

    def look(self, *, timeout_s: float) -> StreamServers:
        """Ask anew; raises `Gone` or `Unreachable`."""

    def hand_over(self, server: str, *, timeout_s: float) -> None:
        """Have another server lead; raises `Unreachable` if that takes too long."""


class StreamLead:
    """Where the lead of the stream should be, as the node sees it whose server has a name."""

    def __init__(self, stream: LedStream, server: str, *, clock: Clock) -> None:
        self.moves = 0
        """How often it was moved away from here."""
        self._stream, self._server, self._clock = stream, server, clock
        self._rests_until_s = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this node's own server leads the stream, as was heard last."""
        return self._stream.servers.leader == self._server

    def is_due(self) -> bool:
        """Whether this node's own server leads the stream, and another one could."""
        if not self.is_here or self._clock.seconds() < self._rests_until_s:
            return False
        return _target(self._stream.servers) is not None

    def move(self) -> None:
        """Have another server lead; by the node that leads, while it appends nothing."""
        self._rests_until_s = self._clock.seconds() + AGAIN_S
        try:
            target = _target(self._stream.look(timeout_s=MOVE_S))
            if target is None or not self.is_here:
                return
            self._stream.hand_over(target, timeout_s=MOVE_S)
        except (Gone, Unreachable) as error:
            _logger.warning("stream_lead_stays server=%s reason=%s", self._server, error)
            return
        self.moves += 1
        _logger.info("stream_lead_moved from=%s to=%s", self._server, self._stream.servers.leader)


def _target(servers: StreamServers) -> str | None:
    """A server that could lead, and does not."""
    return min((one.name for one in servers.replicas if one.is_sound), default=None)
