"""Catching up beside the shared log: a node takes the whole file of another one.

It does so when it is new, far behind, damaged, or makes no progress: it then replays what came after.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from millstream.cluster.node.inspection import Inspection
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.node.snapshots import exchange, read_position
from millstream.cluster.reports import Bulletin, NodeReport
from millstream.errors import Overloaded

Fetch = Callable[[NodeReport, Path], None]
"""Fetches a snapshot of another node's store, checked against what that node sent, into a file."""


class NoSnapshot(Exception):
    """No snapshot could be taken now: a later try may do better."""


class CatchUp:
    """How far a node is behind the others, and their files."""

    def __init__(
        self,
        member: ClusterMember,
        bulletin: Bulletin,
        fetch: Fetch | None,
        *,
        inspection: Inspection,
    ) -> None:
        """Without `fetch`, only the shared log brings the node up to date."""
        self.bulletin = bulletin
        self.taken = 0
        """How often the file of another node was taken."""
        self._member, self._fetch, self._inspection = member, fetch, inspection

    @property
    def behind(self) -> int:
        """How many entries the node that is furthest ahead has more, by its last report."""
        found = self.bulletin.reports().values()
        most = max((report.sequence for report, _ in found), default=0)
        return max(0, most - self._member.position.sequence)

    @property
    def is_far_behind(self) -> bool:
        """Whether to replay the shared log would take longer than to take a file."""
        return self._fetch is not None and self.behind > self._member.settings.snapshot_entries_min

    @property
    def is_stalled(self) -> bool:
        """Whether the node is behind, and has come no further for a while."""
        idle_s = self._member.clock.seconds() - self._member.footing.progress_s
        return idle_s >= self._member.settings.stalled_s and self.behind > 0

    def source(self, heard_s_max: float = math.inf) -> NodeReport | None:
        """The node to ask: the leader if it is well, else the one that is furthest ahead."""
        name, heard = self._member.name, self.bulletin.reports().values()
        others = [one for one, age_s in heard if one.node != name and age_s <= heard_s_max]
        found = [one for one in others if one.role in ("leader", "follower")]
        return max(found, key=lambda one: (one.sequence, one.role == "leader"), default=None)

    def take(self, reason: str) -> None:
        """Take the whole file from another node, and go on from there; raises `NoSnapshot`."""
        member, source = self._member, self.source()
        if self._fetch is None or source is None:
            raise NoSnapshot(f"a snapshot is needed ({reason}), and no node has one to give")
        place = Path(member.engine.place)
        path = place.with_name(f"{place.name}.snapshot")
        try:
            self._fetch(source, path)
            found = read_position(path)
        except Exception as error:  # of a network, of a node that is down
            raise NoSnapshot(f"no snapshot from {source.node}: {error}") from error
        own = member.position
        if found.sequence < own.sequence or (own.cluster and found.cluster != own.cluster):
            raise Overloaded(
                f"the snapshot of {source.node} stands at entry {found.sequence}, and this store at "
                f"{own.sequence}: it is of no use"
            )
        keep_old = bool(member.damaged)
        self._inspection.stop()
        with member.turn:
            exchange(member.engine, path, keep_old=keep_old)
            member.load()
        self.taken += 1
