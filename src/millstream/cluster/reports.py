"""Reports: the messages by which the nodes of a cluster tell their status.

Safety does not depend on reports: a report may be late, lost, or repeated. From reports, nodes
learn the leader's address, decide when to campaign, and know which entries may be trimmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

Role = Literal["leader", "follower", "joining", "halted"]
"""The activity of a node: `joining` catches up and serves no bounded reads, `halted` has stopped
for a reason."""


class NodeReport(Struct, frozen=True, array_like=True):
    """The status of a node, in its own words."""

    node: str
    address: str
    """The address for clients and other nodes: http://host:port."""
    role: Role
    epoch: int
    """The newest epoch that the node has applied."""
    sequence: int
    """The last entry of the shared log that the node has applied and synced."""
    hash: bytes
    """The running hash at this entry."""
    reason: str = ""
    """Why the node has halted, cannot lead, or leads and cannot write."""
    version: str = ""
    """The version of Millstream."""
    resumed: str = ""
    """The reason of the last halt from which the node resumed by itself."""


class ReportChannel(Protocol):
    """The channel of reports. Its methods are safe for all threads."""

    def post(self, report: NodeReport) -> None:
        """Send a report to the other nodes, without waiting for them."""

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the newest report of each node, and its age in seconds."""


class LocalReportChannel:
    """The reports of nodes within a process: a primary with its standby, or a test."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._newest: dict[str, tuple[NodeReport, float]] = {}

    def post(self, report: NodeReport) -> None:
        """Store the report of a node."""
        self._newest[report.node] = report, self._seconds()

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the newest report of each node, and its age in seconds."""
        now_s = self._seconds()
        return {name: (report, now_s - at_s) for name, (report, at_s) in list(self._newest.items())}
