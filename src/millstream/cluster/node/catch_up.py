"""Catching up without the shared log: a node takes the complete file of another node.

A new node does so, and a node that is far behind, damaged or stalled. Afterwards the node replays
newer entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from millstream.cluster.node.inspection import Inspection
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.node.snapshots import exchange, read_position
from millstream.cluster.reports import NodeReport, ReportChannel
from millstream.errors import Overloaded

Fetch = Callable[[NodeReport, Path], None]
"""Fetches a snapshot of another node's store into a file, and verifies its checksums."""


class NoSnapshot(Exception):
    """No snapshot can be taken now: a later try may succeed."""


class CatchUp:
    """Measures how far a node is behind, and takes snapshots of other nodes."""

    def __init__(
        self,
        member: ClusterMember,
        channel: ReportChannel,
        fetch: Fetch | None,
        *,
        inspection: Inspection,
    ) -> None:
        """Without `fetch`, only the shared log brings the node up to date."""
        self.channel = channel
        self.taken = 0
        """How often the file of another node was taken."""
        self._member, self._fetch, self._inspection = member, fetch, inspection

    @property
    def behind(self) -> int:
        """Return how many entries this node is behind the longest log, by the last reports."""
        reports = self.channel.reports().values()
        last_sequence = max((report.sequence for report, _ in reports), default=0)
        return max(0, last_sequence - self._member.position.sequence)

    @property
    def is_far_behind(self) -> bool:
        """Whether replaying the shared log would take longer than taking a file."""
        return self._fetch is not None and self.behind > self._member.settings.snapshot_entries_min

    @property
    def is_stalled(self) -> bool:
        """Whether the node is behind, and has made no progress for a while."""
        idle_s = self._member.clock.seconds() - self._member.progress.progress_s
        return idle_s >= self._member.settings.stalled_s and self.behind > 0

    def source(self, heard_s_max: float = math.inf) -> NodeReport | None:
        """Return the node to ask: the leader if it is sound, else the node that is furthest ahead."""
        name, heard = self._member.name, self.channel.reports().values()
        peers = [report for report, age_s in heard if report.node != name and age_s <= heard_s_max]
        sound_peers = [report for report in peers if report.role in ("leader", "follower")]
        return max(
            sound_peers, key=lambda report: (report.sequence, report.role == "leader"), default=None
        )

    def take(self, reason: str) -> None:
        """Take the file of another node, and continue from its position. Raises `NoSnapshot`."""
        member, source = self._member, self.source()
        if self._fetch is None or source is None:
            raise NoSnapshot(f"a snapshot is needed ({reason}), and no node has one to give")
        place = Path(member.engine.place)
        path = place.with_name(f"{place.name}.snapshot")
        try:
            self._fetch(source, path)
            offered = read_position(path)
        except Exception as error:  # a broken network, a node that is down
            raise NoSnapshot(f"no snapshot from {source.node}: {error}") from error
        local = member.position
        if offered.sequence < local.sequence or (
            local.cluster and offered.cluster != local.cluster
        ):
            raise Overloaded(
                f"the snapshot of {source.node} stands at entry {offered.sequence}, and this store at "
                f"{local.sequence}: it is of no use"
            )
        keep_old = bool(member.damaged)
        self._inspection.stop()
        with member.turn:
            exchange(member.engine, path, keep_old=keep_old)
            member.load()
        self.taken += 1
