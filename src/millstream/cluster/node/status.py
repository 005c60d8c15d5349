"""The status of a node, for its server, its metrics and its users."""

from __future__ import annotations

from msgspec import Struct

from millstream.cluster.reports import Role


class NodeState(Struct, frozen=True):
    """The status of a node."""

    node: str
    address: str
    role: Role
    epoch: int
    leader: str | None
    """The name of the leading node, if known."""
    leader_address: str | None
    sequence: int
    """The last entry that was read."""
    lag: int
    """How many entries this node is behind the longest log, by the last reports."""
    progress_age_s: float
    """Seconds since this node last applied an entry; an idle leader writes entries too."""
    elections: int
    """How often the leader changed, as this node has observed."""
    replays: int
    """Applied commits of other nodes."""
    snapshots: int
    """How often this node fetched the store of another node."""
    barrier_s: float
    """How long the last proof for strong reads took."""
    reason: str = ""
    """Why the node has halted, cannot lead, or leads and cannot write."""
    resumes: int = 0
    """How often the node resumed by itself after a halt."""
