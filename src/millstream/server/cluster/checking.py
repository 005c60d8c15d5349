"""The health check of a node: a leader proves its leadership, a follower its connection."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.server.cluster.role import Seat
from millstream.server.observe.health import Check

SILENT_S = 10.0
"""A node that applied no entry for this long is cut off from its cluster."""

LAG_WARNING = 10_000
"""A node that is this many entries behind answers old reads."""


async def check_cluster(seat: Seat) -> Check:
    """Check a node: a leader must prove its leadership, a follower must have applied an entry.

    The proof is a barrier through the shared log. The node does not trust another program's word.
    """
    stance = seat.node.state()
    if stance.role == "halted":
        return Check("cluster", "critical", f"this node has halted: {stance.reason}")
    if seat.leads:
        try:
            await seat.prove()
        except MillstreamError as error:
            return Check("cluster", "critical", error.message)
        return Check("cluster", "healthy", f"leads in epoch {stance.epoch}")
    if stance.progress_age_s > SILENT_S:
        silent = f"no entry of the shared log was applied for {stance.progress_age_s:.0f} s"
        return Check("cluster", "critical" if not stance.leader else "warning", silent)
    if stance.lag > LAG_WARNING or stance.role == "joining":
        return Check("cluster", "warning", f"{stance.lag:,} entries behind; the node catches up")
    return Check("cluster", "healthy", f"follows {stance.leader or 'no node yet'}")
