"""A member: one node's place in the shared log, what it appends there and what it applies from it.

Everything happens in its `turn`, and there are no threads here: a leader's commits come from the
store above, a follower's from the node's loop.

What always holds:

- The position on disk is that of a noted entry (an epoch, a commit, every 64th barrier), and was
  written with what that entry did to the rows.
- An append names the last entry that this node has seen. If it succeeds, nothing came in between.
- After an append whose outcome is unsure, nothing is appended but a barrier at the same place,
  until what stands there is known. If that takes too long, the node steps down: it finds out as
  every follower does, by reading.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from millstream.cluster import entry as entries
from millstream.cluster import refusal
from millstream.cluster.batch import EntryBatch, OneMore
from millstream.cluster.entry import Differs, EpochBody, Position, SharedEntry, TableChange, encode
from millstream.cluster.leadership import Leadership
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import (
    Gone,
    Overtaken,
    SharedLog,
    Stored,
    Unreachable,
    Unsure,
)
from millstream.cluster.time import ClusterClock
from millstream.errors import (
    CorruptionError,
    MillstreamError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
)
from millstream.format import keys
from millstream.store.commit import Commit
from millstream.store.engine import Engine, Writer

PAUSE_S = 0.05
"""Between two tries of a leader that cannot reach the shared log."""


class NeedsSnapshot(Exception):
    """The shared log alone does not bring this node up to date."""


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
        pause: Callable[[float], object],
    ) -> None:
        self.name, self.address = name, address
        self.engine, self.shared = engine, shared
        self.clock, self.settings, self.leadership = clock, settings, leadership
        self.turn = threading.Lock()
        self.changed = threading.Condition()
        """Told whenever the position or the role has changed."""
        self.position = Position()
        """Behind the last entry that was seen."""
        self.noted = Position()
        """The position on disk."""
        self.halted = ""
        """Why this node does nothing any more."""
        self.damaged = ""
        """Why this node never leads: its own rows are damaged."""
        self.met_damage = ""
        """What a read has met that is damaged here; the node's loop decides what follows from it."""
        if hasattr(engine, "on_damage"):
            engine.on_damage = self._meet_damage
        self.replays = 0
        """Commits that were applied from the shared log."""
        self.barrier_s = 0.0
        """How long the last append took."""
        self.progress_s = clock.seconds()
        """When the position last changed."""
        self.backlog = 0
        """Entries up to here were stored before this node joined: how long ago, only wall clocks say."""
        self.may_reopen = False
        """Whether another log has begun behind one that was closed, as the node has seen."""
        self._pause = pause
        self._begun = self._proven = 0
        """Appends by number: how many were begun, and the last that is known to be stored."""
        self._campaigns: set[bytes] = set()
        """The ids of epoch entries that this life of this node has sent."""
        self._chunks: list[bytes] = []
        self._chunks_of = b""
        self._lost = True
        """Whether the position in memory is not to be trusted: the one on disk counts."""
        self._shaken = False
        """Whether a write here has failed, so that the engine has to make sure of what is on disk."""
        self._doubt: str | None = None
        """What interrupted a commit whose outcome is not known."""

    # What the store above asks for.

    def check_leads(self) -> None:
        """Refuse to write on a node that does not lead."""
        if self._doubt is not None:
            raise OutcomeUnknown(f"the commit was interrupted ({self._doubt})", cause=self._doubt)
        if not self.leadership.leads or self.halted:
            raise self.not_leader()

    @property
    def stopped(self) -> str:
        """Why this node writes nothing, whichever node led last; empty if it may."""
        return self.halted or (refusal.CLOSED if self.is_closed else "")

    @property
    def is_closed(self) -> bool:
        """Whether the log ends here for good, and no other one has begun behind this store."""
        return self.position.closed and not self.may_reopen

    def not_leader(self) -> NotLeader:
        """What a caller is told by a node that does not lead."""
        return refusal.not_leader(self.name, self.leadership, stopped=self.stopped)

    def commit(self, writer: Writer, commit: Commit, tables: list[TableChange]) -> None:
        """Have the quorum keep a commit, and then keep it here; in the turn, by the leader."""
        body = entries.pack(commit, tables, bytes_max=self.settings.commit_bytes_max)
        sent = False
        try:
            position = self._send_commit(body)
            sent = True
            writer.commit(
                Commit(OneMore(commit.rows, position.row()), commit.deletes, commit.ranges)
            )
        except (NotLeader, NoQuorum):
            raise
        except MillstreamError as error:
            self._shaken = sent
            self._lose()
            if not sent:
                raise
            if isinstance(error, CorruptionError):
                self.damaged = str(error)
            raise OutcomeUnknown(
                f"the cluster has the commit, and this node could not store it ({error}); it steps "
                "down and replays it. Look whether it is there, or repeat it under a producer's "
                "sequence",
                cause=str(error),
            ) from error
        except BaseException as error:
            self._doubt = f"{type(error).__name__}: {error}"
            self._shaken = True
            self._lose()
            raise
        self._note(position)

    def prove(self, since: int) -> None:
        """Show that this node led after append number `since` was begun; in the turn."""
        if self._proven > since:
            return
        self.check_leads()
        self._beat()

    @property
    def begun(self) -> int:
        """How many appends were begun: one that is begun later shows that this node led then."""
        return self._begun

    def recover(self) -> None:
        """Make certain what is on disk, and go on from there."""
        with self.turn:
            self.engine.recover()
            self._shaken, self._doubt = False, None
            self._lost = self._lost or not self.leadership.leads

    # What the node's loop asks for.

    def beat(self) -> bool:
        """Show the others, and oneself, that this node leads; False if a commit just does so."""
        if not self.turn.acquire(blocking=False):
            return False
        try:
            if self.leadership.leads:
                self._beat()
        finally:
            self.turn.release()
        return True

    def read(self, timeout_s: float) -> list[Stored]:
        """What came after the position; by a follower."""
        with self.turn:
            if self._lost:
                self._reload()
            after = self.position.sequence
        return self.shared.read(after, bytes_max=self.settings.read_bytes_max, timeout_s=timeout_s)

    def apply(self, found: list[Stored]) -> None:
        """Apply entries in order."""
        with self.turn:
            if self._lost:
                self._reload()
            try:
                self._apply(found)
            except Differs as error:
                self.halt(str(error))
            except BaseException as error:
                self._shaken = True
                self._lose()
                if isinstance(error, CorruptionError):
                    self.damaged = str(error)
                    raise NeedsSnapshot(str(error)) from error
                raise

    def campaign(self) -> bool:
        """Try to lead: append an epoch behind everything that was applied."""
        with self.turn:
            if self.damaged or self.stopped or self._lost or self.leadership.leads:
                return False
            body = EpochBody(self.name, self.address, self.engine.last_seq())
            entry = self._entry(entries.EPOCH, encode(body), epoch=self.position.epoch + 1)
            self._campaigns.add(entry.id)
            self.leadership.wait(self.clock.seconds())
            try:
                position = self._append(entry)
            except Overtaken:
                return False
            except (Unsure, Unreachable):  # if it is stored after all, it is read like any other
                self.leadership.retry(self.clock.seconds())
                return False
            self._chunks = []
            self._write_position(position)
            self._begin(entry.epoch, body, own=True)
            return True

    def _meet_damage(self, error: CorruptionError) -> None:
        """Called by any thread, in the middle of a read or a commit."""
        self.met_damage = self.met_damage or str(error)

    def halt(self, reason: str) -> None:
        """Do nothing any more: going on could do harm."""
        self.halted = self.halted or reason
        self._lose()

    def found_damage(self, reason: str) -> None:
        """Lead no more: the rows here are damaged, and come from another node from now on."""
        with self.turn:
            if not self.damaged:
                self.damaged = reason
                self._lose()

    def load(self) -> None:
        """Begin with what is in the file, when the node starts or the file was exchanged; in the turn."""
        self.damaged = self.met_damage = ""
        self._reload()
        self.clock.follow(self.position, live=not self.position.sequence)
        view = self.position
        self.leadership.start(
            self.clock.seconds(), epoch=view.epoch, leader=view.leader, address=view.address
        )

    # Appending.

    def _send_commit(self, body: bytes) -> Position:
        self._chunks = []  # of a commit that was given up
        name = secrets.token_bytes(entries.ID_BYTES)
        most = min(entries.CHUNK_BYTES_MAX, self.shared.entry_bytes_max - 1024)
        if len(body) <= most:
            return self._send(entries.COMMIT, body, name)
        pieces = entries.cut(body, most)
        for piece in pieces:
            try:
                self._send(entries.CHUNK, piece, name)
            except OutcomeUnknown as error:  # without the last entry, no piece of it counts
                raise NoQuorum(f"nothing was stored: {error.message}") from error
            self._chunks.append(b"")
        position = self._send(
            entries.CHUNKED, encode(entries.ChunkedBody(len(pieces), len(body))), name
        )
        self._chunks = []
        return position

    def _beat(self) -> None:
        began_s = self.clock.seconds()
        position = self._send(entries.BARRIER, b"", secrets.token_bytes(entries.ID_BYTES))
        self.barrier_s = self.clock.seconds() - began_s
        if entries.is_noted(entries.BARRIER, position.sequence) and not self._chunks:
            self._write_position(position)

    def _send(self, kind: int, body: bytes, name: bytes) -> Position:
        """Append an entry as the leader; returns once it is certain that it is stored.

        Raises `NotLeader` and `NoQuorum`, if it is certain that it is not, and `OutcomeUnknown`.
        """
        deadline_s = self.clock.seconds() + self.settings.settle_timeout_s
        while True:
            entry = self._entry(kind, body, name=name)
            try:
                return self._append(entry)
            except Unreachable as error:
                raise refusal.no_quorum(self.shared.place, error) from error
            except (Overtaken, Unsure) as error:
                position = self._settle(entry, deadline_s, error)
            if position is not None:
                return position

    def _append(self, entry: SharedEntry) -> Position:
        """Append behind the position, and go there."""
        data = encode(entry)
        self._begun += 1
        number = self._begun
        self.shared.append(
            data, after=self.position.sequence, timeout_s=self.settings.append_timeout_s
        )
        self._proven = number
        self.leadership.sent(self.clock.seconds())
        return self._advance(data, entry)

    def _settle(self, entry: SharedEntry, deadline_s: float, cause: Exception) -> Position | None:
        """Find out what stands behind the position: the entry, or a barrier (None), or another's.

        A barrier that is stored there shows that the entry never can be.
        """
        number, barriers = self._begun, set[bytes]()
        may_fit = isinstance(cause, Unsure)
        while self.clock.seconds() < deadline_s:
            try:
                found = self.shared.read(
                    self.position.sequence, bytes_max=1, timeout_s=0 if may_fit else PAUSE_S
                )
                if found:
                    return self._settled(found[0], entry, number, barriers)
                if may_fit:
                    barrier = self._entry(entries.BARRIER, b"")
                    barriers.add(barrier.id)
                    self._append(barrier)
                    return None
            except Overtaken:
                may_fit = False
            except (Unsure, Unreachable):
                self._pause(PAUSE_S)
            except Gone:  # trimmed while this node slept, or lost: the loop finds out which
                break
            except Differs as error:
                self.halt(str(error))
                break
        self._lose()
        raise OutcomeUnknown(
            f"the shared log did not say within {self.settings.settle_timeout_s:g} s whether it has "
            "the commit; look whether it is there, or repeat it under a producer's sequence",
            cause=str(cause),
        )

    def _settled(
        self, found: Stored, entry: SharedEntry, number: int, barriers: set[bytes]
    ) -> Position | None:
        other = entries.decode(found.sequence, found.data)
        if other == entry:
            self._proven = number
            return self._advance(found.data, entry)
        if other.id in barriers:
            self._advance(found.data, other)
            return None
        successor = None
        if other.kind == entries.EPOCH:
            successor = entries.decode_body(found.sequence, EpochBody, other.body)
        self._lose(successor)
        raise self.not_leader()

    def _entry(
        self, kind: int, body: bytes, *, name: bytes = b"", epoch: int | None = None
    ) -> SharedEntry:
        return SharedEntry(
            kind,
            self.position.epoch if epoch is None else epoch,
            name or secrets.token_bytes(entries.ID_BYTES),
            self.position.hash,
            max(self.position.time_ms, self.clock.boot_ms()),
            self.clock.wall_ms(),
            body,
        )

    def _advance(self, data: bytes, entry: SharedEntry) -> Position:
        self.position = entries.behind(self.position, data, entry)
        return self.position

    # Applying.

    def _apply(self, found: list[Stored]) -> None:
        batch = EntryBatch(self.position, self._chunks, self._chunks_of)
        for stored in found:
            if stored.sequence <= batch.position.sequence:
                continue  # it came twice
            if stored.sequence != batch.position.sequence + 1:
                break  # what is missing in between is read again
            try:
                entry, epoch = batch.add(stored)
            except Differs:
                self._flush(batch)  # what came before it is true
                raise
            self.clock.follow(entry, live=stored.sequence > self.backlog)
            if epoch is not None:
                self._flush(batch)
                self._check_same(stored.sequence, epoch)
                self._begin(entry.epoch, epoch, own=entry.id in self._campaigns)
            elif batch.is_full:
                self._flush(batch)
            if entry.kind == entries.CLOSED:
                self.may_reopen = False
        self._flush(batch)
        self.leadership.heard(self.clock.seconds())

    def _flush(self, batch: EntryBatch) -> None:
        """Keep what was gathered, with the position of the last entry that is noted."""
        if batch.noted is not None:
            with self.engine.write() as writer:
                batch.write(writer)
            self.replays += batch.commits
            self.noted = batch.noted
            batch.clear()
        self._chunks, self._chunks_of = batch.chunks, batch.chunks_of
        self.position = batch.position
        self._tell()

    def _check_same(self, sequence: int, epoch: EpochBody) -> None:
        own = self.engine.last_seq()
        if own == epoch.last_seq:
            return
        if sequence == 1 and not own:  # the cluster was begun with a store that had rows already
            raise NeedsSnapshot(f"the cluster began with a store of {epoch.node} that had rows")
        raise Differs(
            f"at entry {sequence} this store stands at commit {own}, and that of {epoch.node} at "
            f"{epoch.last_seq}"
        )

    # The position, and the role.

    def _reload(self) -> None:
        if self._shaken:
            self.engine.recover()
            self._shaken = False
        try:
            with self.engine.read() as snapshot:
                self.position = entries.decode_position(snapshot.get(keys.CLUSTER_KEY))
        except CorruptionError as error:
            self.damaged = str(error)
            raise NeedsSnapshot(self.damaged) from error
        self.noted = self.position
        self._chunks, self._lost = [], False
        self._tell()

    def _write_position(self, position: Position) -> None:
        try:
            with self.engine.write() as writer:
                writer.commit(Commit([position.row()]))
        except BaseException:
            self._shaken = True
            self._lose()
            raise
        self._note(position)

    def _note(self, position: Position) -> None:
        self.noted = position
        self._tell()

    def _begin(self, epoch: int, body: EpochBody, *, own: bool) -> None:
        self.leadership.began(self.clock.seconds(), epoch, body, own=own)
        self._tell()

    def _lose(self, successor: EpochBody | None = None) -> None:
        """Lead no more, and begin with what is on disk."""
        self._lost = True
        if self.leadership.leads:
            self.leadership.step_down(self.clock.seconds(), successor=successor)
        self._tell()

    def _tell(self) -> None:
        self.progress_s = self.clock.seconds()
        with self.changed:
            self.changed.notify_all()
