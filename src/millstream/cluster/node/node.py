"""A node of a cluster: a store's engine, the shared log, and the loop that follows or leads.

One thread calls `step` in a loop. A follower's step reads the shared log and applies its entries; a
leader's step sends a heartbeat. Commits of the leader do not pass through the loop.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress

from millstream.clock import Clock
from millstream.cluster.entry import Position
from millstream.cluster.nats.stream_leader import StreamLead
from millstream.cluster.node.catch_up import CatchUp, Fetch, NoSnapshot
from millstream.cluster.node.engine import ReplicatedEngine
from millstream.cluster.node.inspection import Inspection
from millstream.cluster.node.leadership import Leadership
from millstream.cluster.node.log_identity import LogIdentity
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.node.position import NeedsSnapshot
from millstream.cluster.node.status import NodeState, StatusReporter
from millstream.cluster.reports import NodeReport, ReportChannel
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Gone, SharedLog, Unreachable
from millstream.cluster.time import ClusterClock
from millstream.engine.protocol import Engine
from millstream.errors import Conflict, MillstreamError, NoQuorum, Overloaded

CHECKING_S = 0.05
"""The pause of a node that would campaign if its file were checked."""
HEARD_S = 2.0
"""A node that reported within this time is running."""

FAILED_S = 0.2
"""The pause after a failed step."""


class Node:
    """One node. `start` runs its loop on a thread; any thread may call the methods."""

    def __init__(
        self,
        name: str,
        address: str,
        engine: Engine,
        shared: SharedLog,
        channel: ReportChannel,
        *,
        clock: Clock,
        settings: NodeSettings | None = None,
        snapshots: Fetch | None = None,
        stream_lead: StreamLead | None = None,
        version: str = "",
        chance: random.Random | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.name, self.address = name, address
        self.settings = settings or NodeSettings()
        self.clock = ClusterClock(clock)
        """The clock of the store over `engine`: its time goes on when another node leads."""
        self.on_change: Callable[[NodeState], None] | None = None
        """Called by the node's thread when its role, the leader or the epoch has changed."""
        self.on_applied: Callable[[], None] | None = None
        """Called by the node's thread after it applied entries of another node; it must be quick.
        """
        self._shared = shared
        self._stream_lead = stream_lead
        self._stop = threading.Event()
        self._hurries = False
        """Whether commits no longer wait for the shared log."""
        self._pause = pause or self._stop.wait
        self._leadership = Leadership(
            name,
            beat_s=self.settings.beat_s,
            silence_s=self.settings.silence_s,
            jitter_s=self.settings.jitter_s,
            chance=chance or random.Random(),
        )
        self.member = ClusterMember(
            name,
            address,
            engine,
            shared,
            clock=self.clock,
            settings=self.settings,
            leadership=self._leadership,
            pause=self._pause_and_tell,
        )
        self.engine = ReplicatedEngine(self.member)
        self._inspection = Inspection(engine, clock=clock, wait_s=self.settings.inspection_s)
        self._catch_up = CatchUp(self.member, channel, snapshots, inspection=self._inspection)
        self._identity = LogIdentity(self.member)
        self._status = StatusReporter(
            self.member, channel, catch_up=self._catch_up, identity=self._identity, version=version
        )
        self.last_failure: str | None = None
        self._thread: threading.Thread | None = None
        self._stepping = threading.Lock()
        """Held during a step of the loop: between two steps the shared log may be exchanged."""
        self._free = threading.Event()
        """Cleared while a caller needs the loop to rest: the loop would take its lock again before
        any waiter."""
        self._free.set()

    # Running.

    def start(self) -> None:
        """Join, catch up and campaign from now on, on a separate thread."""
        if self.settings.yields_damaged:
            self._inspection.start()
        self._thread = threading.Thread(target=self._run, name="millstream-node", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Let commits that wait for the shared log fail at once: the store is about to be closed."""
        self._hurries = True

    def stop(self) -> None:
        """End the thread, and close the shared log and the rows. Close the store first."""
        self._stop.set()
        with self.member.changed:
            self.member.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._inspection.stop()
        with self.member.turn:
            self._leadership.leads = False
            try:
                self._status.post()  # another node may take over at once
            finally:
                self._shared.close()
                self.member.engine.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._free.wait()
                with self._stepping:
                    self.step()
            except (MillstreamError, Unreachable) as error:
                self.last_failure = str(error)
                self._tell()  # a node that cannot go on still reports
                self._pause(FAILED_S)
            except Exception as error:  # continuing after an unknown error could do harm
                self.member.halt(f"{type(error).__name__}: {error}")

    def step(self) -> None:
        """Run one iteration of the loop."""
        if damage := self._inspection.damage or self._damage_met():
            self.member.found_damage(damage)
        if self.member.halted:
            if not self._identity.look_again():
                self._pause(self.settings.turn_s)
        elif not self._status.is_joined:
            self._join()
        elif self._leadership.leads:
            self._lead()
        else:
            self._follow()
        self._tell()

    def _damage_met(self) -> str:
        """Return damage that reads have met, if a node with sound rows is running; else ""."""
        may_yield = self.settings.yields_damaged or not self._leadership.leads
        met = self.member.met_damage
        return met if met and may_yield and self._catch_up.source(HEARD_S) is not None else ""

    def _join(self) -> None:
        """Compare the position of this store with the shared log."""
        try:
            with self.member.turn:
                self.member.load()
        except NeedsSnapshot as error:
            self._take_snapshot(str(error))
            return
        held = self._identity.check()
        if held is None:
            return
        self.member.may_reopen = held.first > self.member.position.sequence
        if self.member.is_closed:
            self._pause(self.settings.turn_s)
            return
        if not self._identity.check_same(held):
            return
        self.member.applier.backlog = held.last
        self._status.is_joined = True

    def _lead(self) -> None:
        if self._stream_lead is not None and self._stream_lead.is_due():
            with self.member.turn:  # no append is in flight meanwhile
                self._stream_lead.move()
        rest_s = self._leadership.next_s(self.clock.seconds())
        try:
            if rest_s == 0 and self.member.beat():
                return
        except NoQuorum as error:
            self._status.note_no_quorum(error.message)
            with suppress(Unreachable):
                self._identity.check()  # a deleted log takes no entries either
            raise
        self._pause(min(rest_s or self.settings.beat_s, self.settings.turn_s))

    def _follow(self) -> None:
        if self.member.damaged:
            self._take_snapshot(self.member.damaged)
            return
        if self._catch_up.is_far_behind:
            self._take_snapshot("far behind")
            return
        wait_s = min(self.settings.turn_s, self._leadership.next_s(self.clock.seconds()))
        try:
            read_entries = self.member.read(wait_s)
            if read_entries:
                self.member.apply(read_entries)
        except Gone as error:
            self._gone(error)
            return
        except NeedsSnapshot as error:
            self._take_snapshot(str(error))
            return
        if read_entries:
            self._status.is_joined = not self.member.is_closed
            if self.on_applied is not None:
                self.on_applied()
            return
        self._leadership.yields = self._stream_lead is not None and self._stream_lead.is_here
        self._hear_reports()
        if self._catch_up.is_stalled:
            self._take_snapshot(f"no progress for {self.settings.stalled_s:g} s")
        elif self._leadership.due(self.clock.seconds()) == "campaign":
            self._campaign()

    def _campaign(self) -> None:
        if self._inspection.is_awaited:
            self._pause(min(CHECKING_S, self.settings.turn_s))
        elif (
            not self.member.position.sequence and self._catch_up.behind
        ):  # leading would hide the rows of the other nodes
            self._take_snapshot("other nodes have a history, and this one has none")
        else:
            self.member.campaign()

    def _gone(self, error: Gone) -> None:
        """Handle a log that was trimmed past this node's position, or is shorter than the position."""
        held = self._identity.check()
        if held is not None and held.first > self.member.position.sequence + 1:
            self._take_snapshot(str(error))

    def _hear_reports(self) -> None:
        """Postpone the campaign while the leader reports, even if it has nothing to write."""
        view = self._leadership
        heard = self._status.channel.reports().get(view.leader or "")
        if heard is None or heard[0].node == self.name:
            return
        report, age_s = heard
        if report.role != "leader" and report.epoch >= view.epoch:
            view.lost(self.clock.seconds())
            return
        if (
            report.role == "leader"
            and report.epoch == view.epoch
            and age_s < self.settings.beat_s * 2
        ):
            view.heard(self.clock.seconds() - age_s)

    def _take_snapshot(self, reason: str) -> None:
        try:
            self._catch_up.take(reason)
        except NoSnapshot as error:
            self.last_failure = str(error)
            self._pause(self.settings.turn_s)
            return
        if self.on_applied is not None:
            self.on_applied()

    # Calls of other threads.

    def state(self) -> NodeState:
        """Return the status of this node."""
        return self._status.state()

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the newest report of each node, and its age in seconds."""
        return self._status.channel.reports()

    def promote(self, make: Callable[[Position, int], SharedLog], channel: ReportChannel) -> None:
        """Lead from here on, over another shared log that begins behind this node's store.

        `make` gets this node's position in the former log, and the sequence of its store. Only a
        standby is promoted: nodes of a quorum elect their leader. Raises `Conflict` if this node
        leads already, or cannot lead.
        """
        self._free.clear()
        try:
            self._promote(make, channel)
        finally:
            self._free.set()
        self._tell()

    def _promote(self, make: Callable[[Position, int], SharedLog], channel: ReportChannel) -> None:
        with self._stepping:
            if self._leadership.leads or self.member.halted or self.member.damaged:
                raise Conflict(
                    f"node {self.name} cannot be promoted: "
                    f"{self.member.halted or self.member.damaged or 'it leads'}"
                )
            with self.member.turn:
                before = self.member.position
                self.member.load()
                former_log, self._shared = self._shared, make(before, self.member.position.sequence)
                self.member.appender.shared = self._shared
                self._status.channel = self._catch_up.channel = channel
            former_log.close()
            if not self.member.campaign():
                raise Conflict(f"node {self.name} could not begin an epoch; try again")

    def barrier(self, timeout_s: float) -> None:
        """Return once it is certain that this node led after the call began: a read is then strong.

        Waiting callers share an entry. Raises `NotLeader`, `NoQuorum` or `OutcomeUnknown`.
        """
        member = self.member
        member.check_leads()
        since = member.begun
        if not member.turn.acquire(timeout=timeout_s):
            raise NoQuorum(f"no barrier within {timeout_s:g} s: a commit is in flight")
        try:
            member.prove(since)
        finally:
            member.turn.release()

    def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Return once this node has applied an entry. Raises `Overloaded` after the timeout."""
        member = self.member
        with member.changed:
            if not member.changed.wait_for(
                lambda: member.position.sequence >= sequence or self._stop.is_set(), timeout_s
            ):
                raise Overloaded(
                    f"node {self.name} is behind: it has applied entry {member.position.sequence}, "
                    f"and {sequence} was asked for within {timeout_s:g} s"
                )

    def wait_readable(self, timeout_s: float) -> None:
        """Return once a store can be opened over `engine`: the engine has rows, or this node leads.

        A halted node serves its rows, and its status tells the reason.
        """
        member = self.member

        def has_rows() -> bool:
            return bool(member.position.sequence) and member.engine.last_seq() > 0

        def readable() -> bool:
            if self._stop.is_set() or member.halted:
                return True
            return self._leadership.leads or has_rows()

        with member.changed:
            is_readable = member.changed.wait_for(readable, timeout_s)
        if member.halted and not has_rows():
            raise member.not_leader()
        if not is_readable:
            raise NoQuorum(
                f"node {self.name} found no leader and no rows within {timeout_s:g} s: "
                f"{self.last_failure or 'are the other nodes running?'}"
            )

    def _pause_and_tell(self, duration_s: float) -> object:
        """Pause inside an append, and keep reporting if the loop's own thread appends.

        Followers that hear nothing would campaign as soon as the shared log takes entries again.
        """
        if self._thread in (None, threading.current_thread()):
            self._tell()
        return self._hurries or self._pause(duration_s)

    def _tell(self) -> None:
        """Post a report at intervals, and call `on_change` when role, leader or epoch has changed."""
        if not self._status.post_if_due():
            return
        if self._leadership.leads and self.engine.on_upkeep_due is not None:
            self.engine.on_upkeep_due()  # folds, retention and sweeps are this node's work from now on
        if self.on_change is not None:
            self.on_change(self.state())
