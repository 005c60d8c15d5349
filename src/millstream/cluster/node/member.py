"""A member: one node's part in the shared log, as its store and its loop ask for it.

Everything happens in its `turn`, and there are no threads here: a leader's commits come from the
store above, a follower's from the node's loop. Where the node stands is its `footing`, what it
appends goes through its appender, and what it reads through its applier.
"""

from __future__ import annotations

import threading

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, TableChange, encode
from millstream.cluster.node import refusal
from millstream.cluster.node.appending import Appender, Pause
from millstream.cluster.node.applying import Applier
from millstream.cluster.node.batch import OneMore
from millstream.cluster.node.leadership import Leadership
from millstream.cluster.node.position import Footing, NeedsSnapshot
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Overtaken, SharedLog, Stored, Unreachable, Unsure
from millstream.cluster.time import ClusterClock
from millstream.engine.commit import Commit
from millstream.engine.protocol import Engine, Writer
from millstream.errors import (
    CorruptionError,
    MillstreamError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
)


class ClusterMember:
    """A node's store, and its place in the shared log."""

    def __init__(
        self,
        name: str,
        address: str,
        engine: Engine,
        shared: SharedLog,
        *,
        clock: ClusterClock,
        settings: NodeSettings,
        leadership: Leadership,
        pause: Pause,
    ) -> None:
        self.name, self.address = name, address
        self.engine = engine
        self.clock, self.settings, self.leadership = clock, settings, leadership
        self.turn = threading.Lock()
        self.footing = Footing(engine, clock=clock, leadership=leadership)
        self.met_damage = ""
        """What a read has met that is damaged here; the node's loop decides what follows from it."""
        if hasattr(engine, "on_damage"):
            engine.on_damage = self._meet_damage
        self.may_reopen = False
        """Whether another log has begun behind one that was closed, as the node has seen."""
        self._campaigns: set[bytes] = set()
        """The ids of epoch entries that this life of this node has sent."""
        self.appender = Appender(
            self.footing, shared, settings=settings, not_leader=self.not_leader, pause=pause
        )
        self.applier = Applier(self.footing, campaigns=self._campaigns)
        self._doubt: str | None = None
        """What interrupted a commit whose outcome is not known."""

    # Where it stands.

    @property
    def position(self) -> Position:
        """Behind the last entry that was seen."""
        return self.footing.position

    @property
    def noted(self) -> Position:
        """The position on disk."""
        return self.footing.noted

    @property
    def changed(self) -> threading.Condition:
        """Told whenever the position or the role has changed."""
        return self.footing.changed

    @property
    def halted(self) -> str:
        """Why this node does nothing any more; empty if it does."""
        return self.footing.halted

    @property
    def damaged(self) -> str:
        """Why this node never leads: its own rows are damaged; empty if they are not."""
        return self.footing.damaged

    @property
    def stopped(self) -> str:
        """Why this node writes nothing, whichever node led last; empty if it may."""
        return self.halted or (refusal.CLOSED if self.is_closed else "")

    @property
    def is_closed(self) -> bool:
        """Whether the log ends here for good, and no other one has begun behind this store."""
        return self.position.closed and not self.may_reopen

    @property
    def may_resume(self) -> bool:
        """Whether this node has halted for what may pass, and its own rows are sound."""
        is_damaged = bool(self.damaged or self.met_damage)
        return bool(self.halted) and self.footing.may_pass and not is_damaged

    @property
    def resumed(self) -> str:
        """Why this node had halted last, before it went on by itself; empty if it never did."""
        return self.footing.resumed

    @property
    def shared(self) -> SharedLog:
        """The shared log; a standby that is promoted gets another one."""
        return self.appender.shared

    # What the store above asks for.

    def check_leads(self) -> None:
        """Refuse to write on a node that does not lead."""
        if self._doubt is not None:
            raise OutcomeUnknown(f"the commit was interrupted ({self._doubt})", cause=self._doubt)
        if not self.leadership.leads or self.halted:
            raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """What a caller is told by a node that does not lead."""
        return refusal.not_leader(self.name, self.leadership, stopped=self.stopped)

    def commit(self, writer: Writer, commit: Commit, tables: list[TableChange]) -> None:
        """Have the quorum keep a commit, and then keep it here; in the turn, by the leader."""
        body = entries.pack(commit, tables, bytes_max=self.settings.commit_bytes_max)
        sent = False
        try:
            position = self.appender.send_commit(body)
            sent = True
            writer.commit(
                Commit(OneMore(commit.rows, position.row()), commit.deletes, commit.ranges)
            )
        except (NotLeader, NoQuorum):
            raise
        except MillstreamError as error:
            self.footing.lose(shaken=sent)
            if not sent:
                raise
            if isinstance(error, CorruptionError):
                self.footing.damaged = str(error)
            raise OutcomeUnknown(
                f"the cluster has the commit, and this node could not store it ({error}); it steps "
                "down and replays it. Look whether it is there, or repeat it under a producer's "
                "sequence",
                cause=str(error),
            ) from error
        except BaseException as error:
            self._doubt = f"{type(error).__name__}: {error}"
            self.footing.lose(shaken=True)
            raise
        self.footing.note(position)

    @property
    def begun(self) -> int:
        """How many appends were begun: one that is begun later shows that this node led then."""
        return self.appender.begun

    def prove(self, since: int) -> None:
        """Show that this node led after append number `since` was begun; in the turn."""
        if self.appender.proven > since:
            return
        self.check_leads()
        self.appender.send_barrier()

    def recover(self) -> None:
        """Make certain what is on disk, and go on from there."""
        with self.turn:
            self.engine.recover()
            self._doubt, self.footing.is_shaken = None, False
            self.footing.is_lost = self.footing.is_lost or not self.leadership.leads

    # What the node's loop asks for.

    def load(self) -> None:
        """Begin with what is in the file, when the node starts or the file was exchanged; in the turn."""
        self.footing.damaged = self.met_damage = ""
        self.footing.reload()
        view = self.position
        self.clock.follow(view, live=not view.sequence)
        self.leadership.start(
            self.clock.seconds(), epoch=view.epoch, leader=view.leader, address=view.address
        )

    def beat(self) -> bool:
        """Show the others, and oneself, that this node leads; False if a commit just does so."""
        if not self.turn.acquire(blocking=False):
            return False
        try:
            if self.leadership.leads:
                self.appender.send_barrier(waits=False)  # the loop has reports to post meanwhile
        finally:
            self.turn.release()
        return True

    def stand(self) -> None:
        """Begin with what is on disk, if the position in memory is not to be trusted."""
        with self.turn:
            if self.footing.is_lost:
                self.footing.reload()

    def read(self, timeout_s: float) -> list[Stored]:
        """What came after the position; by a follower."""
        self.stand()
        after = self.position.sequence
        return self.shared.read(after, bytes_max=self.settings.read_bytes_max, timeout_s=timeout_s)

    def apply(self, found: list[Stored]) -> None:
        """Apply entries in order."""
        with self.turn:
            if self.footing.is_lost:
                self.footing.reload()
            try:
                if self.applier.apply(found):
                    self.may_reopen = False
            except Differs as error:
                self.halt(str(error))
            except BaseException as error:
                self.footing.lose(shaken=True)
                if isinstance(error, CorruptionError):
                    self.footing.damaged = str(error)
                    raise NeedsSnapshot(str(error)) from error
                raise

    def campaign(self) -> bool:
        """Try to lead: append an epoch behind everything that was applied."""
        with self.turn:
            footing = self.footing
            if self.damaged or self.stopped or footing.is_lost or self.leadership.leads:
                return False
            body = EpochBody(self.name, self.address, self.engine.last_seq())
            epoch = self.position.epoch + 1
            entry = self.appender.entry(entries.EPOCH, encode(body), epoch=epoch)
            self._campaigns.add(entry.id)
            self.leadership.wait(self.clock.seconds())
            try:
                position = self.appender.append(entry)
            except Overtaken:
                return False
            except (Unsure, Unreachable):  # if it is stored after all, it is read like any other
                self.leadership.retry(self.clock.seconds())
                return False
            footing.chunks = []
            footing.write(position)
            footing.begin(entry.epoch, body, own=True)
            return True

    def halt(self, reason: str, *, may_pass: bool = False) -> None:
        """Do nothing any more: going on could do harm; `may_pass` if a later look may show otherwise."""
        self.footing.halt(reason, may_pass=may_pass)

    def resume(self, *, backlog: int) -> bool:
        """Go on after a halt that has passed; the entries up to `backlog` came meanwhile."""
        with self.turn:
            if not self.may_resume:
                return False
            self.applier.backlog = backlog
            self.footing.resume()
            return True

    def found_damage(self, reason: str) -> None:
        """Lead no more: the rows here are damaged, and come from another node from now on."""
        with self.turn:
            if not self.damaged:
                self.footing.damaged = reason
                self.footing.lose()

    def _meet_damage(self, error: CorruptionError) -> None:
        """Called by any thread, in the middle of a read or a commit."""
        self.met_damage = self.met_damage or str(error)
