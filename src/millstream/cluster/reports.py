"""The bulletin: what the nodes of a cluster tell each other of themselves, now and then.

It carries nothing that safety depends on: a report may be late, lost, or come twice. By it nodes
find the leader's address, decide when to campaign, and know what may be trimmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

Role = Literal["leader", "follower", "joining", "halted"]
"""What a node does: `joining` catches up and serves no bounded reads, `halted` has stopped for a reason."""


class NodeReport(Struct, frozen=True, array_like=True):
    """How a node stands, as it says itself."""

    node: str
    address: str
    """Where clients and other nodes reach it: http://host:port."""
    role: Role
    epoch: int
    """The newest epoch that it has applied."""
    sequence: int
    """The last entry of the shared log that it has applied and synced."""
    hash: bytes
    """The running hash there."""
    reason: str = ""
    """Why it has halted, cannot lead, or leads and cannot write."""
    version: str = ""
    """Of Millstream."""
    resumed: str = ""
    """Why it had halted last, before it went on by itself."""


class Bulletin(Protocol):
    """Where reports are posted. Any thread may call it."""

    def post(self, report: NodeReport) -> None:
        """Tell the other nodes; does not wait for them."""

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """The newest report of each node that was heard of, and how many seconds ago."""


class BulletinBoard:
    """The bulletin of nodes that post in one process: a primary's with its standby, or a test's."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._found: dict[str, tuple[NodeReport, float]] = {}

    def post(self, report: NodeReport) -> None:
        """Note how a node stands."""
        self._found[report.node] = report, self._seconds()

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """The newest report of each node, and how many seconds ago."""
        now_s = self._seconds()
        return {name: (one, now_s - at_s) for name, (one, at_s) in list(self._found.items())}
