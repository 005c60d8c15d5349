"""How a node stands, as it knows itself: for its server, its metrics, and all that ask."""

from __future__ import annotations

from msgspec import Struct

from millstream.cluster.reports import Role


class Standing(Struct, frozen=True):
    """How a node stands."""

    node: str
    address: str
    role: Role
    epoch: int
    leader: str | None
    """The name of the leading node, if one is known."""
    leader_address: str | None
    sequence: int
    """The last entry that is stored here, or was only seen."""
    lag: int
    """How many entries the node that is furthest ahead has more, by its last report."""
    progress_age_s: float
    """Seconds since this node last applied an entry; a leading node that is idle writes some too."""
    elections: int
    """How often the leader changed, as this node has seen it."""
    replays: int
    """Commits of other nodes that this one has applied."""
    snapshots: int
    """How often it took a copy of another node's store."""
    barrier_s: float
    """How long the last proof for strong reads took."""
    reason: str = ""
    """Why it has halted, cannot lead, or leads and cannot write."""
    resumes: int = 0
    """How often it went on by itself after it had halted."""
