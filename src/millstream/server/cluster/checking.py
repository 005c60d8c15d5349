"""Whether a node can do its part: proved by a write of its own, never by what another program says."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.server.cluster.role import Seat
from millstream.server.observe.health import Check

SILENT_S = 10.0
"""A node that has applied nothing for so long hears nothing of its cluster."""

LAG_WARNING = 10_000
"""Entries behind which a node's own reads are old."""


async def check_cluster(seat: Seat) -> Check:
    """A leading node proves that it leads; another one must have heard of the cluster lately."""
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
        silent = f"nothing of the cluster was heard for {stance.progress_age_s:.0f} s"
        return Check("cluster", "critical" if not stance.leader else "warning", silent)
    if stance.lag > LAG_WARNING or stance.role == "joining":
        return Check("cluster", "warning", f"{stance.lag:,} entries behind; it catches up")
    return Check("cluster", "healthy", f"follows {stance.leader or 'no node yet'}")
