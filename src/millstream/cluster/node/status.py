"""The status of a node: as a value for its server and metrics, and as reports to the other nodes."""

from __future__ import annotations

from msgspec import Struct

from millstream.cluster.node.catch_up import CatchUp
from millstream.cluster.node.log_identity import LogIdentity
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.reports import NodeReport, ReportChannel, Role


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


class StatusReporter:
    """Derives the state of a node from its parts, and posts reports about it."""

    def __init__(
        self,
        member: ClusterMember,
        channel: ReportChannel,
        *,
        catch_up: CatchUp,
        identity: LogIdentity,
        version: str,
    ) -> None:
        self.channel = channel
        self.is_joined = False
        """Whether the node has compared its store with the shared log."""
        self._member, self._leadership = member, member.leadership
        self._catch_up, self._identity = catch_up, identity
        self._version = version
        self._elections = 0
        self._no_quorum = "", 0
        """Why this node could not prove that it leads, and the number of its last stored append. A
        later append makes the reason obsolete."""
        self._posted: tuple[Role, int, str | None] | None = None
        self._due_s = 0.0

    def state(self) -> NodeState:
        """Return the present state."""
        member, view = self._member, self._leadership
        return NodeState(
            node=member.name,
            address=member.address,
            role=self.role,
            epoch=view.epoch,
            leader=view.leader,
            leader_address=view.address,
            sequence=member.position.sequence,
            lag=self._catch_up.behind,
            progress_age_s=max(0.0, member.clock.seconds() - member.progress.progress_s),
            elections=self._elections,
            replays=member.applier.replays,
            snapshots=self._catch_up.taken,
            barrier_s=member.appender.barrier_s,
            reason=self._reason(),
            resumes=self._identity.resumes,
        )

    @property
    def role(self) -> Role:
        """Return the activity of the node."""
        if self._member.stopped:
            return "halted"
        if self._leadership.leads:
            return "leader"
        return "follower" if self.is_joined and not self._member.damaged else "joining"

    def note_no_quorum(self, reason: str) -> None:
        """Remember why a heartbeat of the leader failed."""
        self._no_quorum = reason, self._member.appender.proven

    def post(self) -> None:
        """Post a report now."""
        member = self._member
        self.channel.post(
            NodeReport(
                node=member.name,
                address=member.address,
                role=self.role,
                epoch=self._leadership.epoch,
                sequence=member.noted.sequence,
                hash=member.noted.hash,
                reason=self._reason(),
                version=self._version,
                resumed=member.resumed,
            )
        )

    def post_if_due(self) -> bool:
        """Post a report at intervals, and after changes; True if role, leader or epoch has changed."""
        view, now_s = self._leadership, self._member.clock.seconds()
        state = self.role, view.epoch, view.leader
        if state == self._posted and now_s < self._due_s:
            return False
        self._due_s = now_s + self._member.settings.beat_s
        self.post()
        if state == self._posted:
            return False
        if self._posted is not None and state[1] != self._posted[1]:
            self._elections += 1
        self._posted = state
        return True

    def _reason(self) -> str:
        """Return why the node has halted, cannot lead, or leads and cannot write."""
        why, proven = self._no_quorum
        is_current = self._leadership.leads and self._member.appender.proven == proven
        return self._member.stopped or self._member.damaged or (why if is_current else "")
