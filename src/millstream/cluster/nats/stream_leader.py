"""The stream's leading server is kept away from the node that leads the cluster.

When the machine of the stream's leading server is lost, the other servers wait 4 to 9 seconds until
they elect a successor; NATS has no setting for it. So a leading node lets another node's server
lead the stream. If the leader's machine is lost, the stream continues at once, and the next node
can take over as soon as it misses its leader. Safety does not depend on this.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from millstream.clock import Clock
from millstream.cluster.shared_log import Gone, Unreachable

_logger = logging.getLogger("millstream.cluster")

MOVE_S = 2.0
"""How long the stream may take to change its leading server; writes wait meanwhile."""
AGAIN_S = 10.0
"""The pause after a move, whatever its result."""
HEARD_NS = 1_800_000_000
"""A server that was silent for this time may be lost. Followers wait longer until they campaign, so
a server that was lost with the leading node is never taken for sound."""


class StreamReplica(msgspec.Struct, frozen=True):
    """A server that follows the stream's leading server."""

    name: str
    current: bool = False
    """Whether it has all entries of the leading server; a server that was just lost still counts.
    """
    offline: bool = False
    active: int = 0
    """Nanoseconds since the leading server last heard of it; servers speak every second."""

    @property
    def is_sound(self) -> bool:
        """Whether it could lead: it has everything, and was there a moment ago."""
        return self.current and not self.offline and self.active < HEARD_NS


class StreamServers(msgspec.Struct, frozen=True):
    """The servers of a stream, as of their last answer."""

    leader: str = ""
    replicas: list[StreamReplica] = []

    @property
    def has_quorum(self) -> bool:
        """Whether a majority was alive a moment ago; a former leader that is cut off still answers."""
        alive = 1 + sum(
            not replica.offline and replica.active < HEARD_NS for replica in self.replicas
        )
        return 2 * alive > 1 + len(self.replicas)


class LedStream(Protocol):
    """A shared log on servers, one of which leads."""

    @property
    def servers(self) -> StreamServers:
        """Which servers there are, as was heard last."""

    def look(self, *, timeout_s: float) -> StreamServers:
        """Ask again. Raises `Gone` or `Unreachable`."""

    def hand_over(self, server: str, *, timeout_s: float) -> None:
        """Let another server lead. Raises `Unreachable` after a timeout."""


class StreamLead:
    """Decides which server should lead the stream, for the node with a server of its own."""

    def __init__(self, stream: LedStream, server: str, *, clock: Clock) -> None:
        self.moves = 0
        """How often the lead was moved away."""
        self._stream, self._server, self._clock = stream, server, clock
        self._rests_until_s = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this node's server leads the stream, as of the last answer."""
        return self._stream.servers.leader == self._server

    def is_due(self) -> bool:
        """Whether this node's server leads the stream, and another server could."""
        if not self.is_here or self._clock.seconds() < self._rests_until_s:
            return False
        return _target(self._stream.servers) is not None

    def move(self) -> None:
        """Let another server lead; the leading node calls it while it appends nothing."""
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
    """Return a server that could lead, and does not."""
    return min((replica.name for replica in servers.replicas if replica.is_sound), default=None)
