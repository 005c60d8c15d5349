"""The seat: a server's place in its cluster, as its event loop sees it.

It knows whether this node leads and where the leading one is, tells coroutines when that changes, and
proves for strong reads that this node still leads: one proof for all reads that wait for it.
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

BARRIER_S = ELECTION_S
"""How long a strong read waits for the proof that this node leads."""

FORWARD_S = ELECTION_S
"""How long a request waits for a leading node, while there is none."""

REACH_S = ELECTION_S
"""How long a node may take to apply what the leading one has."""

AGAIN_S = 0.05
"""How long it is waited before a leading node that did not answer is asked again."""


KEY_OF_THIS_MACHINE = "nodes-of-this-machine"
"""What nodes show each other on loopback without tokens: it keeps no client out."""


class SeatNode(Protocol):
    """What a seat asks of its node; any thread may."""

    name: str
    address: str
    on_change: Callable[[NodeState], None] | None

    def state(self) -> NodeState:
        """How it stands now."""

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """What it has heard of all nodes, and how many seconds ago."""

    def barrier(self, timeout_s: float) -> None:
        """Return once it is known to have led after the call began; blocks."""

    def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Return once it has applied an entry; blocks. `Overloaded` if that takes too long."""


class ServedNode(SeatNode, Protocol):
    """What a server asks of the node that it is; `cluster.node.Node` has it."""

    @property
    def engine(self) -> Any:
        """The engine of the store; `read_only` while another node leads."""

    @property
    def clock(self) -> Any:
        """The clock that the store is opened with."""

    def start(self) -> None:
        """Join the cluster."""

    def wait_readable(self, timeout_s: float) -> None:
        """Return once a store can be opened; `NoQuorum` if that takes too long."""

    def hurry(self) -> None:
        """Have commits that wait for a quorum fail at once: the store is about to be closed."""

    def stop(self) -> None:
        """Leave the cluster; the store was closed. A second call does nothing."""


class Asker(Struct, frozen=True):
    """A client of this node: what it shows, and what it wants of reads."""

    credential: str = ""
    """Its token or ticket, for the leading node to check as well."""
    read_level: ReadLevel = STRONG
    is_handed_on: bool = False
    """Whether another node handed this on: then it goes no further."""


ALONE = Asker()
"""A client of a server that is no node."""


class Seat:
    """One node's place; belongs to the event loop in which it was made."""

    def __init__(
        self, node: SeatNode, *, leads: Callable[[], bool], key: str, ca: str = ""
    ) -> None:
        """`leads` is the cheap question; `key` is what nodes show each other."""
        self.node = node
        self.key = key
        self.ca = ca or None
        self.handed_on = 0
        """Requests and commands that the leading node answered for this one."""
        self.primary = ""
        """Of a standby: where it was told that its primary is."""
        self._leads = leads
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._proof: asyncio.Task[None] | None = None
        self._next_proof: asyncio.Task[None] | None = None
        node.on_change = self._on_change
        self.stance = node.state()
        """How the node stood when its role, the leader or the epoch last changed."""

    @property
    def leads(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return self._leads()

    @property
    def leader_address(self) -> str:
        """Where the leading node is, if it is another one and known; else empty."""
        found = self.primary or self.stance.leader_address or ""
        return "" if found == self.node.address else found

    def is_node(self, credential: str) -> bool:
        """Whether a request was sent by a node of this cluster."""
        return bool(self.key) and hmac.compare_digest(credential.encode(), self.key.encode())

    def not_leader(self) -> NotLeader:
        """What a request gets that this node may not hand on, or could not."""
        where, stance = self.leader_address, self.stance
        why = f"has halted ({stance.reason})" if stance.role == "halted" else "does not lead"
        return NotLeader(
            f"node {self.node.name} {why}, and nothing was done; "
            + (f"{where} does: ask there" if where else "no node is known to lead: ask again"),
            leader=where or None,
            epoch=stance.epoch,
        )

    # Who answers.

    def answers(self, command: Command[Any], level: ReadLevel) -> bool:
        """Whether this node answers a command itself, rather than the leading one."""
        return self.leads or (not command.writes and self.reads(level))

    def reads(self, level: ReadLevel) -> bool:
        """Whether reads of a level may be answered from what this node has."""
        if level.kind == "strong" or self.stance.role == "joining":
            return False
        if level.kind == "eventual":
            return True
        return self.stance.role != "halted" and self._is_within(level.lag_s_max)

    async def freshen(self, command: Command[Any], level: ReadLevel) -> None:
        """On the leading node, before a read: prove that it still leads, if the level wants that.

        A read that waits needs no proof: what it waits for is true once it is seen.
        """
        if command.writes or level.kind == "eventual" or waits(command):
            return
        if level.kind == "strong" or not self._is_within(level.lag_s_max):
            await self.prove()

    def _is_within(self, lag_s_max: float) -> bool:
        stance = self.node.state()
        return stance.lag == 0 and stance.progress_age_s <= lag_s_max

    async def prove(self) -> None:
        """Know that this node leads, as of a moment after the call. Raises `NotLeader`, `NoQuorum`."""
        if self._next_proof is None:
            self._next_proof = self._loop.create_task(self._run_proof(self._proof))
            self._next_proof.add_done_callback(_looked_at)
        await asyncio.shield(self._next_proof)

    def sequence(self) -> int:
        """The last entry that this node has applied."""
        return self.node.state().sequence

    async def reach(self, sequence: int) -> None:
        """Wait until this node has applied an entry of the shared log."""
        if self.sequence() < sequence:
            await asyncio.to_thread(self.node.wait_applied, sequence, REACH_S)

    async def _run_proof(self, before: asyncio.Task[None] | None) -> None:
        """One barrier for all that came while the one before ran."""
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._proof, self._next_proof = self._next_proof, None
        await asyncio.to_thread(self.node.barrier, BARRIER_S)

    # Changes.

    async def changed(self, timeout_s: float) -> None:
        """Wait until the role, the leader or the epoch changes, but not for long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _on_change(self, stance: NodeState) -> None:
        """Called by the node's own thread."""
        try:
            self._loop.call_soon_threadsafe(self._note, stance)
        except RuntimeError:
            pass  # the server has stopped

    def _note(self, stance: NodeState) -> None:
        self.stance = stance
        self._changed.set()
        self._changed = asyncio.Event()

    def look(self) -> None:
        """Ask the node anew how it stands: it may know of a leader by now."""
        self.stance = self.node.state()

    def close(self) -> None:
        """Hear no more of the node."""
        self.node.on_change = None


def _looked_at(task: asyncio.Task[None]) -> None:
    """A proof that fails after its readers have gone is nobody's concern."""
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        assert isinstance(error, MillstreamError | RuntimeError), error
