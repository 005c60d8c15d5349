"""A node's footing: its position in the shared log, in memory and on disk, and whether it holds.

The position on disk is that of a noted entry (an epoch, a commit, every 64th barrier), and was
written with what that entry did to the rows. All changes happen in the member's turn.
"""

from __future__ import annotations

import threading

from millstream.cluster import entry as entries
from millstream.cluster.entry import EpochBody, Position, SharedEntry
from millstream.cluster.node.leadership import Leadership
from millstream.cluster.time import ClusterClock
from millstream.engine.commit import Commit
from millstream.engine.protocol import Engine
from millstream.errors import CorruptionError
from millstream.format import keys


class NeedsSnapshot(Exception):
    """The shared log alone does not bring this node up to date."""


class Footing:
    """Where a node stands in the shared log."""

    def __init__(self, engine: Engine, *, clock: ClusterClock, leadership: Leadership) -> None:
        self.engine, self.clock, self.leadership = engine, clock, leadership
        self.changed = threading.Condition()
        """Told whenever the position or the role has changed."""
        self.position = Position()
        """Behind the last entry that was seen."""
        self.noted = Position()
        """The position on disk."""
        self.chunks: list[bytes] = []
        """Pieces of a commit whose end has not come yet."""
        self.chunks_of = b""
        """The id that they share."""
        self.halted = ""
        """Why this node does nothing any more."""
        self.may_pass = False
        """Whether that may pass: the shared log was gone or too short, as its servers showed it."""
        self.resumed = ""
        """Why this node had halted last, before it went on by itself."""
        self.damaged = ""
        """Why this node never leads: its own rows are damaged."""
        self.progress_s = clock.seconds()
        """When the position last changed."""
        self.is_lost = True
        """Whether the position in memory is not to be trusted: the one on disk counts."""
        self.is_shaken = False
        """Whether a write here has failed, so that the engine has to make sure of what is on disk."""

    def reload(self) -> None:
        """Begin with what is on disk; raises `NeedsSnapshot` if that is damaged."""
        if self.is_shaken:
            self.engine.recover()
            self.is_shaken = False
        try:
            with self.engine.read() as snapshot:
                self.position = entries.decode_position(snapshot.get(keys.CLUSTER_KEY))
        except CorruptionError as error:
            self.damaged = str(error)
            raise NeedsSnapshot(self.damaged) from error
        self.noted = self.position
        self.chunks, self.is_lost = [], False
        self.tell()

    def advance(self, data: bytes, entry: SharedEntry) -> Position:
        """Go behind one more entry, which has these bytes."""
        self.position = entries.behind(self.position, data, entry)
        return self.position

    def write(self, position: Position) -> None:
        """Put a position on disk that no rows come with."""
        try:
            with self.engine.write() as writer:
                writer.commit(Commit([position.row()]))
        except BaseException:
            self.lose(shaken=True)
            raise
        self.note(position)

    def note(self, position: Position) -> None:
        """A position is on disk."""
        self.noted = position
        self.tell()

    def begin(self, epoch: int, body: EpochBody, *, own: bool) -> None:
        """An epoch has begun; `own` says that this life of this node has sent its entry."""
        self.leadership.began(self.clock.seconds(), epoch, body, own=own)
        self.tell()

    def lose(self, successor: EpochBody | None = None, *, shaken: bool = False) -> None:
        """Lead no more, and begin with what is on disk; `shaken` if a write here has failed."""
        self.is_lost = True
        self.is_shaken = self.is_shaken or shaken
        if self.leadership.leads:
            self.leadership.step_down(self.clock.seconds(), successor=successor)
        self.tell()

    def halt(self, reason: str, *, may_pass: bool = False) -> None:
        """Do nothing any more: going on could do harm. A halt that may pass gives way to what is known later."""
        if not self.halted or self.may_pass:
            self.halted, self.may_pass = reason, may_pass
        self.lose()

    def resume(self) -> None:
        """Go on after a halt that has passed, from what is on disk."""
        self.halted, self.resumed = "", self.halted
        self.leadership.wait(self.clock.seconds())
        self.tell()

    def tell(self) -> None:
        """Wake all that wait for a change."""
        self.progress_s = self.clock.seconds()
        with self.changed:
            self.changed.notify_all()
