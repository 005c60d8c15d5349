"""A member: the part of a node that reads and appends the shared log, for its store and its loop.

Everything happens in its `turn`, and no thread runs here: the store above calls for a leader's
commits, the node's loop for a follower's. `progress` holds the position in the shared log, the
appender writes entries, and the applier applies them.
"""

from __future__ import annotations

import threading

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, encode
from millstream.cluster.node.appender import Appender, Pause
from millstream.cluster.node.applier import Applier, OneMore
from millstream.cluster.node.leadership import CLOSED, Leadership
from millstream.cluster.node.position import LogProgress, NeedsSnapshot
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Overtaken, SharedLog, Stored, Unreachable, Unsure
from millstream.cluster.time import ClusterClock
from millstream.engine.commit import Commit
from millstream.engine.protocol import Engine, TableChange, Writer
from millstream.errors import (
    CorruptionError,
    MillstreamError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
)


class ClusterMember:
    """A node's store, and its position in the shared log."""

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
        self.progress = LogProgress(engine, clock=clock, leadership=leadership)
        self.met_damage = ""
        """Damage that a read has met; the node's loop decides how to react."""
        if hasattr(engine, "on_damage"):
            engine.on_damage = self._meet_damage
        self.may_reopen = False
        """Whether a new log has begun behind a closed one, as far as the node knows."""
        self._campaigns: set[bytes] = set()
        """The ids of the epoch entries that this process has sent."""
        self.appender = Appender(
            self.progress, shared, settings=settings, not_leader=self.not_leader, pause=pause
        )
        self.applier = Applier(self.progress, campaigns=self._campaigns)
        self._doubt: str | None = None
        """The error that interrupted a commit with an unknown outcome."""

    # Position and health.

    @property
    def position(self) -> Position:
        """Return the position behind the last entry that was read."""
        return self.progress.position

    @property
    def noted(self) -> Position:
        """Return the position on disk."""
        return self.progress.noted

    @property
    def changed(self) -> threading.Condition:
        """Return the condition that is notified when the position or the role has changed."""
        return self.progress.changed

    @property
    def halted(self) -> str:
        """Return why this node does nothing any more; empty if it runs."""
        return self.progress.halted

    @property
    def damaged(self) -> str:
        """Return why this node never leads: its rows are damaged; empty if they are sound."""
        return self.progress.damaged

    @property
    def stopped(self) -> str:
        """Return why this node writes nothing, whichever node led last; empty if it may write."""
        return self.halted or (CLOSED if self.is_closed else "")

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed, and no new log has begun behind this store."""
        return self.position.closed and not self.may_reopen

    @property
    def may_resume(self) -> bool:
        """Whether this node has halted for a reason that may pass, and its rows are sound."""
        is_damaged = bool(self.damaged or self.met_damage)
        return bool(self.halted) and self.progress.may_pass and not is_damaged

    @property
    def resumed(self) -> str:
        """Return the reason of the last halt from which this node resumed; empty if none."""
        return self.progress.resumed

    @property
    def shared(self) -> SharedLog:
        """Return the shared log; promoting a standby replaces it."""
        return self.appender.shared

    # Calls of the store above.

    def check_leads(self) -> None:
        """Raise `NotLeader` on a node that does not lead."""
        if self._doubt is not None:
            raise OutcomeUnknown(f"the commit was interrupted ({self._doubt})", cause=self._doubt)
        if not self.leadership.leads or self.halted:
            raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """Return the error for a caller of a node that does not lead."""
        return self.leadership.not_leader(stopped=self.stopped)

    def commit(self, writer: Writer, commit: Commit, tables: list[TableChange]) -> None:
        """Let a quorum store a commit, then store it here; in the leader's turn."""
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
            self.progress.lose(shaken=sent)
            if not sent:
                raise
            if isinstance(error, CorruptionError):
                self.progress.damaged = str(error)
            raise OutcomeUnknown(
                f"the cluster has the commit, and this node could not store it ({error}); it steps "
                "down and replays it. Look whether it is there, or repeat it under a producer's "
                "sequence",
                cause=str(error),
            ) from error
        except BaseException as error:
            self._doubt = f"{type(error).__name__}: {error}"
            self.progress.lose(shaken=True)
            raise
        self.progress.note(position)

    @property
    def begun(self) -> int:
        """Return the number of begun appends: a later append proves that this node led afterwards."""
        return self.appender.begun

    def prove(self, since: int) -> None:
        """Prove that this node led after append number `since` was begun; in the turn."""
        if self.appender.proven > since:
            return
        self.check_leads()
        self.appender.send_barrier()

    def recover(self) -> None:
        """Find out what is on disk, and continue from there."""
        with self.turn:
            self.engine.recover()
            self._doubt, self.progress.is_shaken = None, False
            self.progress.is_lost = self.progress.is_lost or not self.leadership.leads

    # Calls of the node's loop.

    def load(self) -> None:
        """Load the position from a new or exchanged file; in the turn."""
        self.progress.damaged = self.met_damage = ""
        self.progress.reload()
        view = self.position
        self.clock.follow(view, live=not view.sequence)
        self.leadership.start(
            self.clock.seconds(), epoch=view.epoch, leader=view.leader, address=view.address
        )

    def beat(self) -> bool:
        """Send a heartbeat as the leader; False if a running commit serves as one."""
        if not self.turn.acquire(blocking=False):
            return False
        try:
            if self.leadership.leads:
                self.appender.send_barrier(waits=False)  # the loop has reports to post meanwhile
        finally:
            self.turn.release()
        return True

    def stand(self) -> None:
        """Reload the position from disk if the position in memory is not reliable."""
        with self.turn:
            if self.progress.is_lost:
                self.progress.reload()

    def read(self, timeout_s: float) -> list[Stored]:
        """Read the entries after the position, as a follower."""
        self.stand()
        after = self.position.sequence
        return self.shared.read(after, bytes_max=self.settings.read_bytes_max, timeout_s=timeout_s)

    def apply(self, read_entries: list[Stored]) -> None:
        """Apply entries in order."""
        with self.turn:
            if self.progress.is_lost:
                self.progress.reload()
            try:
                if self.applier.apply(read_entries):
                    self.may_reopen = False
            except Differs as error:
                self.halt(str(error))
            except BaseException as error:
                self.progress.lose(shaken=True)
                if isinstance(error, CorruptionError):
                    self.progress.damaged = str(error)
                    raise NeedsSnapshot(str(error)) from error
                raise

    def campaign(self) -> bool:
        """Try to lead: append an epoch behind all applied entries."""
        with self.turn:
            progress = self.progress
            if self.damaged or self.stopped or progress.is_lost or self.leadership.leads:
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
            except (
                Unsure,
                Unreachable,
            ):  # if the epoch was stored after all, it is read as any entry
                self.leadership.retry(self.clock.seconds())
                return False
            progress.chunks = []
            progress.write(position)
            progress.begin(entry.epoch, body, is_own=True)
            return True

    def halt(self, reason: str, *, may_pass: bool = False) -> None:
        """Stop leading and applying, for a reason that reports show; a later check may clear the halt
        only with `may_pass`."""
        self.progress.halt(reason, may_pass=may_pass)

    def resume(self, *, backlog: int) -> bool:
        """Resume after a halt that has passed; entries up to `backlog` were stored meanwhile."""
        with self.turn:
            if not self.may_resume:
                return False
            self.applier.backlog = backlog
            self.progress.resume()
            return True

    def found_damage(self, reason: str) -> None:
        """Stop leading: the rows here are damaged, and must be fetched from another node."""
        with self.turn:
            if not self.damaged:
                self.progress.damaged = reason
                self.progress.lose()

    def _meet_damage(self, error: CorruptionError) -> None:
        """Note damage; any thread calls it, in the middle of a read or a commit."""
        self.met_damage = self.met_damage or str(error)
