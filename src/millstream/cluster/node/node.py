"""A node of a cluster: a store's engine, the shared log, and the loop that follows or leads.

One thread runs `step` over and over. A follower's step reads the shared log and applies it; a
leader's gives a sign of life. Commits of the leader do not pass through it.
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
from millstream.cluster.node.log_identity import Continuity
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.node.position import NeedsSnapshot
from millstream.cluster.node.status import Standing
from millstream.cluster.reports import Bulletin, NodeReport, Role
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Gone, SharedLog, Unreachable
from millstream.cluster.time import ClusterClock
from millstream.engine.protocol import Engine
from millstream.errors import Conflict, MillstreamError, NoQuorum, Overloaded

CHECKING_S = 0.05
"""The pause of a node that would campaign if its file were checked."""
HEARD_S = 2.0
"""A node that reported so lately is there."""

FAILED_S = 0.2
"""The pause after a step that failed."""


class Node:
    """One node. `start` lets it run by itself; any thread may ask it anything."""

    def __init__(
        self,
        name: str,
        address: str,
        engine: Engine,
        shared: SharedLog,
        bulletin: Bulletin,
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
        """What the store over `engine` is opened with: its time goes on when another node leads."""
        self.on_change: Callable[[Standing], None] | None = None
        """Called by the node's thread when its role, the leader or the epoch has changed."""
        self.on_applied: Callable[[], None] | None = None
        """Called by the node's thread when it has applied what another node wrote; it must be quick."""
        self._shared, self._bulletin = shared, bulletin
        self._stream_lead = stream_lead
        self._version = version
        self._stop = threading.Event()
        self._hurries = False
        """Whether a commit no longer waits for the shared log."""
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
        self._catch_up = CatchUp(self.member, bulletin, snapshots, inspection=self._inspection)
        self._continuity = Continuity(self.member)
        self.elections = 0
        self.last_failure: str | None = None
        self._no_quorum = "", 0
        """Why this node could not show that it leads, and after which append; a later one counts."""
        self._joined = False
        self._posted: tuple[Role, int, str | None] | None = None
        self._report_due = 0.0
        self._thread: threading.Thread | None = None
        self._stepping = threading.Lock()
        """Held while the loop takes a step: between two steps the shared log may be exchanged."""
        self._free = threading.Event()
        """Not set while a caller wants the loop to rest: a loop takes a lock again before others can."""
        self._free.set()

    # Running.

    def start(self) -> None:
        """Join, catch up and campaign from now on, on a thread of its own."""
        if self.settings.yields_damaged:
            self._inspection.start()
        self._thread = threading.Thread(target=self._run, name="millstream-node", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Have commits that wait for the shared log fail at once: the store is about to be closed."""
        self._hurries = True

    def stop(self) -> None:
        """End the thread, and close the shared log and the rows; close the store first."""
        self._stop.set()
        with self.member.changed:
            self.member.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._inspection.stop()
        with self.member.turn:
            self._leadership.leads = False
            try:
                self._bulletin.post(self._report())  # another node may take over at once
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
                self._tell()  # a node that cannot go on is heard of all the same
                self._pause(FAILED_S)
            except Exception as error:  # going on with what is not understood could do harm
                self.member.halt(f"{type(error).__name__}: {error}")

    def step(self) -> None:
        """One turn of the loop."""
        if damage := self._inspection.damage or self._damage_met():
            self.member.found_damage(damage)
        if self.member.halted:
            if not self._continuity.look_again():
                self._pause(self.settings.turn_s)
        elif not self._joined:
            self._join()
        elif self._leadership.leads:
            self._lead()
        else:
            self._follow()
        self._tell()

    def _damage_met(self) -> str:
        """What reads have met, if another node is there with the same rows; else this one goes on."""
        may_yield = self.settings.yields_damaged or not self._leadership.leads
        met = self.member.met_damage
        return met if met and may_yield and self._catch_up.source(HEARD_S) is not None else ""

    def _join(self) -> None:
        """Look where this store and the shared log stand."""
        try:
            with self.member.turn:
                self.member.load()
        except NeedsSnapshot as error:
            self._take_snapshot(str(error))
            return
        held = self._continuity.check()
        if held is None:
            return
        self.member.may_reopen = held.first > self.member.position.sequence
        if self.member.is_closed:
            self._pause(self.settings.turn_s)
            return
        if not self._continuity.check_same(held):
            return
        self.member.applier.backlog = held.last
        self._joined = True

    def _lead(self) -> None:
        if self._stream_lead is not None and self._stream_lead.is_due():
            with self.member.turn:  # so that nothing is on its way meanwhile
                self._stream_lead.move()
        rest_s = self._leadership.next_s(self.clock.seconds())
        try:
            if rest_s == 0 and self.member.beat():
                return
        except NoQuorum as error:
            self._no_quorum = error.message, self.member.appender.proven
            with suppress(Unreachable):
                self._continuity.check()  # a log that is gone takes no entries either
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
            found = self.member.read(wait_s)
            if found:
                self.member.apply(found)
        except Gone as error:
            self._gone(error)
            return
        except NeedsSnapshot as error:
            self._take_snapshot(str(error))
            return
        if found:
            self._joined = not self.member.is_closed
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
        ):  # leading would hide their rows
            self._take_snapshot("other nodes have a history, and this one has none")
        else:
            self.member.campaign()

    def _gone(self, error: Gone) -> None:
        """What comes next was trimmed, or the log is shorter than what was applied."""
        held = self._continuity.check()
        if held is not None and held.first > self.member.position.sequence + 1:
            self._take_snapshot(str(error))

    def _hear_reports(self) -> None:
        """A leader that others hear of is alive, though it may have nothing to write."""
        view = self._leadership
        found = self._bulletin.reports().get(view.leader or "")
        if found is None or found[0].node == self.name:
            return
        report, age_s = found
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

    # What others ask.

    def standing(self) -> Standing:
        """How this node stands now."""
        member, view = self.member, self._leadership
        return Standing(
            self.name,
            self.address,
            self._role(),
            view.epoch,
            view.leader,
            view.address,
            member.position.sequence,
            self._catch_up.behind,
            max(0.0, self.clock.seconds() - member.footing.progress_s),
            self.elections,
            member.applier.replays,
            self._catch_up.taken,
            member.appender.barrier_s,
            self._reason(),
            self._continuity.resumes,
        )

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """The newest report of each node that was heard of, and how many seconds ago."""
        return self._bulletin.reports()

    def promote(self, make: Callable[[Position, int], SharedLog], bulletin: Bulletin) -> None:
        """Lead from here on, over another shared log that begins behind this node's store.

        `make` is told what this node has seen of the former log, and where its store stands. For a
        standby alone: nodes of a quorum elect their leader. Raises `Conflict` if this node
        leads already, or cannot lead.
        """
        self._free.clear()
        try:
            self._promote(make, bulletin)
        finally:
            self._free.set()
        self._tell()

    def _promote(self, make: Callable[[Position, int], SharedLog], bulletin: Bulletin) -> None:
        with self._stepping:
            if self._leadership.leads or self.member.halted or self.member.damaged:
                raise Conflict(
                    f"node {self.name} cannot be promoted: "
                    f"{self.member.halted or self.member.damaged or 'it leads'}"
                )
            with self.member.turn:
                before = self.member.position
                self.member.load()
                left, self._shared = self._shared, make(before, self.member.position.sequence)
                self.member.appender.shared = self._shared
                self._bulletin = self._catch_up.bulletin = bulletin
            left.close()
            if not self.member.campaign():
                raise Conflict(f"node {self.name} could not begin an epoch; try again")

    def barrier(self, timeout_s: float) -> None:
        """Return once this node is known to have led after the call began: a read is then strong.

        All callers that wait share one entry. Raises `NotLeader`, `NoQuorum` or `OutcomeUnknown`.
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
        """Return once this node has applied an entry. Raises `Overloaded` if it takes too long."""
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
        """Return once a store can be opened over `engine`: there are rows, or this node leads.

        A node that has halted serves what it has, and says why to all that ask how it stands.
        """
        member = self.member

        def has_rows() -> bool:
            return bool(member.position.sequence) and member.engine.last_seq() > 0

        def readable() -> bool:
            if self._stop.is_set() or member.halted:
                return True
            return self._leadership.leads or has_rows()

        with member.changed:
            found = member.changed.wait_for(readable, timeout_s)
        if member.halted and not has_rows():
            raise member.not_leader()
        if not found:
            raise NoQuorum(
                f"node {self.name} found no leader and no rows within {timeout_s:g} s: "
                f"{self.last_failure or 'are the other nodes running?'}"
            )

    def _reason(self) -> str:
        """Why it has halted, cannot lead, or leads and cannot write."""
        why, proven = self._no_quorum
        is_so = self._leadership.leads and self.member.appender.proven == proven
        return self.member.stopped or self.member.damaged or (why if is_so else "")

    def _role(self) -> Role:
        if self.member.stopped:
            return "halted"
        if self._leadership.leads:
            return "leader"
        return "follower" if self._joined and not self.member.damaged else "joining"

    def _pause_and_tell(self, duration_s: float) -> object:
        """Wait inside an append; the loop's own thread goes on reporting that this node is there.

        Followers that hear nothing would campaign as soon as the shared log takes entries again.
        """
        if self._thread in (None, threading.current_thread()):
            self._tell()
        return self._hurries or self._pause(duration_s)

    def _tell(self) -> None:
        """Post a report now and then, and call back when something has changed."""
        view, now = self._leadership, self.clock.seconds()
        state = self._role(), view.epoch, view.leader
        if state == self._posted and now < self._report_due:
            return
        self._report_due = now + self.settings.beat_s
        self._bulletin.post(self._report())
        if state == self._posted:
            return
        if self._posted is not None and state[1] != self._posted[1]:
            self.elections += 1
        if state[0] == "leader" and self.engine.on_upkeep_due is not None:
            self.engine.on_upkeep_due()  # folds, retention and sweeps are for this node from now on
        self._posted = state
        if self.on_change is not None:
            self.on_change(self.standing())

    def _report(self) -> NodeReport:
        member = self.member
        return NodeReport(
            self.name,
            self.address,
            self._role(),
            self._leadership.epoch,
            member.noted.sequence,
            member.noted.hash,
            self._reason(),
            self._version,
            member.resumed,
        )
