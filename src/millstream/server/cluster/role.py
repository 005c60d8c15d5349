"""The seat: the role of this server in its cluster, as seen by its event loop.

The seat knows whether this node leads and the leader's address, and wakes coroutines when either
changes. For strong reads the seat proves that this node still leads; waiting reads share a proof.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from millstream.cluster.node.status import NodeState
from millstream.cluster.read_level import STRONG, ReadLevel
from millstream.cluster.reports import NodeReport
from millstream.cluster.settings import ELECTION_S
from millstream.command import Command, waits
from millstream.errors import MillstreamError, NotLeader
from millstream.server.observe.health import Check

BARRIER_S = ELECTION_S
"""How long a strong read waits for the proof of leadership."""

FORWARD_S = ELECTION_S
"""How long a request waits for a leader during an election."""

REACH_S = ELECTION_S
"""How long a follower may take to apply the leader's entries."""

AGAIN_S = 0.05
"""The pause before a leader that did not answer is asked again."""

SILENT_S = 10.0
"""A node that applied no entry for this long is cut off from its cluster."""

LAG_WARNING = 10_000
"""A node that is this many entries behind answers old reads."""

KEY_OF_THIS_MACHINE = "nodes-of-this-machine"
"""The key of nodes on loopback without tokens; it keeps no client out."""


class SeatNode(Protocol):
    """The node's interface for its seat. Methods are thread-safe."""

    name: str
    address: str
    on_change: Callable[[NodeState], None] | None

    def state(self) -> NodeState:
        """Return the current status."""

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the last report of every node, with its age in seconds."""

    def barrier(self, timeout_s: float) -> None:
        """Return when the node is known to have led after the call began; blocks."""

    def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Return when an entry is applied; blocks. Raises `Overloaded` after the timeout."""


class ServedNode(SeatNode, Protocol):
    """The node's interface for its server; implemented by `cluster.node.Node`."""

    @property
    def engine(self) -> Any:
        """The engine of the store; `read_only` while another node leads."""

    @property
    def clock(self) -> Any:
        """The clock of the store."""

    def start(self) -> None:
        """Join the cluster."""

    def wait_readable(self, timeout_s: float) -> None:
        """Return when the store can be opened. Raises `NoQuorum` after the timeout."""

    def hurry(self) -> None:
        """Fail all commits that wait for a quorum: the store is about to close."""

    def stop(self) -> None:
        """Leave the cluster, after the store was closed. A second call does nothing."""


class Asker(Struct, frozen=True):
    """The credential and the read level of a client."""

    credential: str = ""
    """The token or ticket, which the leader checks, too."""
    read_level: ReadLevel = STRONG
    is_handed_on: bool = False
    """Whether a node has passed the request on; a request is passed on once only."""


ALONE = Asker()
"""A client of a server that is not a node."""


class ClusterRole:
    """The role of one node. Belongs to the event loop that created it."""

    def __init__(
        self,
        node: SeatNode,
        *,
        leads: Callable[[], bool],
        key: str,
        ca: str = "",
        primary: str = "",
    ) -> None:
        """`leads` is a cheap test without a proof. `key` is the shared secret of the nodes."""
        self.node = node
        self.key = key
        self.ca = ca or None
        self.handed_on = 0
        """Requests and commands that the leader answered for this node."""
        self.primary = primary
        """For a standby: the configured address of its primary."""
        self._leads = leads
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._proof: asyncio.Task[None] | None = None
        self._next_proof: asyncio.Task[None] | None = None
        node.on_change = self._on_change  # assigned, since the node runs before its server starts
        self.stance = node.state()
        """The status at the last change of role, leader or epoch."""

    @property
    def leads(self) -> bool:
        """Whether this node leads, without a proof."""
        return self._leads()

    @property
    def leader_address(self) -> str:
        """The leader's address; empty if this node leads, or no leader is known."""
        address = self.primary or self.stance.leader_address or ""
        return "" if address == self.node.address else address

    def is_node(self, credential: str) -> bool:
        """Whether a request was sent by a node of this cluster."""
        return bool(self.key) and hmac.compare_digest(credential.encode(), self.key.encode())

    def not_leader(self) -> NotLeader:
        """Return the error for a request that this node may not, or could not, pass on."""
        leader, stance = self.leader_address, self.stance
        why = f"has halted ({stance.reason})" if stance.role == "halted" else "does not lead"
        return NotLeader(
            f"node {self.node.name} {why}, and nothing was done; "
            + (f"the leader is {leader}: ask there" if leader else "no leader is known: ask again"),
            leader=leader or None,
            epoch=stance.epoch,
        )

    # Which node answers.

    def answers(self, command: Command[Any], level: ReadLevel) -> bool:
        """Whether this node answers a command itself, and not the leader."""
        return self.leads or (not command.writes and self.reads(level))

    def reads(self, level: ReadLevel) -> bool:
        """Whether this node may answer reads of a level from its own store."""
        if level.kind == "strong" or self.stance.role == "joining":
            return False
        if level.kind == "eventual":
            return True
        return self.stance.role != "halted" and self._is_within(level.lag_s_max)

    async def freshen(self, command: Command[Any], level: ReadLevel) -> None:
        """Prove the leadership of this node, if the level of a read requires a proof.

        A read that waits needs no proof: it returns committed events only.
        """
        if command.writes or level.kind == "eventual" or waits(command):
            return
        if level.kind == "strong" or not self._is_within(level.lag_s_max):
            await self.prove()

    def _is_within(self, lag_s_max: float) -> bool:
        stance = self.node.state()
        return stance.lag == 0 and stance.progress_age_s <= lag_s_max

    async def prove(self) -> None:
        """Prove that this node leads, at a time after the call. Raises `NotLeader` or `NoQuorum`.

        A proof that runs already may have started before the call, so this call needs the next one.
        Later calls share the next proof: the number of proofs does not grow with the number of
        reads.
        """
        if self._next_proof is None:
            self._next_proof = self._loop.create_task(self._run_proof(self._proof))
            self._next_proof.add_done_callback(_looked_at)
        await asyncio.shield(self._next_proof)

    def sequence(self) -> int:
        """Return the last entry that this node has applied."""
        return self.node.state().sequence

    async def reach(self, sequence: int) -> None:
        """Wait until this node has applied an entry of the shared log."""
        if self.sequence() < sequence:
            await asyncio.to_thread(self.node.wait_applied, sequence, REACH_S)

    async def _run_proof(self, before: asyncio.Task[None] | None) -> None:
        """Run a barrier for all reads that arrived while the last barrier ran."""
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._proof, self._next_proof = self._next_proof, None
        await asyncio.to_thread(self.node.barrier, BARRIER_S)

    # Changes.

    async def changed(self, timeout_s: float) -> None:
        """Wait until the role, the leader or the epoch changes, or until the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _on_change(self, stance: NodeState) -> None:
        """Pass a change from the node's thread to the event loop."""
        try:
            self._loop.call_soon_threadsafe(self._note, stance)
        except RuntimeError:
            pass  # the server has stopped

    def _note(self, stance: NodeState) -> None:
        self.stance = stance
        self._changed.set()
        self._changed = asyncio.Event()

    def look(self) -> None:
        """Read the node's status again: it may know a leader by now."""
        self.stance = self.node.state()

    def close(self) -> None:
        """Ignore further changes of the node."""
        self.node.on_change = None


def _looked_at(task: asyncio.Task[None]) -> None:
    """Read the error of a proof whose readers have gone, so that asyncio does not log it."""
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        assert isinstance(error, MillstreamError | RuntimeError), error


async def check_cluster(seat: ClusterRole) -> Check:
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
