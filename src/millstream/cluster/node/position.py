"""The progress of a node in the shared log: its position in memory and on disk.

The position on disk is that of a noted entry (an epoch, a commit, every 64th barrier), and was
written in the same commit as the entry's rows. All changes happen in the member's turn.
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
    """The shared log alone cannot bring this node up to date."""


class LogProgress:
    """How far a node has followed the shared log, and whether it may go on."""

    def __init__(self, engine: Engine, *, clock: ClusterClock, leadership: Leadership) -> None:
        self.engine, self.clock, self.leadership = engine, clock, leadership
        self.changed = threading.Condition()
        """Notified when the position or the role has changed."""
        self.position = Position()
        """The position behind the last entry that was read."""
        self.noted = Position()
        """The position on disk."""
        self.chunks: list[bytes] = []
        """Pieces of a commit whose last piece has not arrived."""
        self.chunks_of = b""
        """The id that the pieces share."""
        self.halted = ""
        """Why the node does nothing any more."""
        self.may_pass = False
        """Whether the halt may pass: the shared log was gone or too short, as its servers showed
        it."""
        self.resumed = ""
        """The reason of the last halt from which this node resumed."""
        self.damaged = ""
        """Why this node never leads: its rows are damaged."""
        self.progress_s = clock.seconds()
        """When the position last changed."""
        self.is_lost = True
        """Whether the position in memory is not reliable: only the position on disk counts."""
        self.is_shaken = False
        """Whether a write has failed, so that the engine must find out what is on disk."""

    def reload(self) -> None:
        """Load the position from disk. Raises `NeedsSnapshot` if the row is damaged."""
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
        """Move the position behind an entry with these bytes."""
        self.position = entries.behind(self.position, data, entry)
        return self.position

    def write(self, position: Position) -> None:
        """Write a position to disk without any rows."""
        try:
            with self.engine.write() as writer:
                writer.commit(Commit([position.row()]))
        except BaseException:
            self.lose(shaken=True)
            raise
        self.note(position)

    def note(self, position: Position) -> None:
        """Note that a position is on disk."""
        self.noted = position
        self.tell()

    def begin(self, epoch: int, body: EpochBody, *, is_own: bool) -> None:
        """Begin an epoch; `is_own` for an entry of this process."""
        self.leadership.began(self.clock.seconds(), epoch, body, is_own=is_own)
        self.tell()

    def lose(self, successor: EpochBody | None = None, *, shaken: bool = False) -> None:
        """Stop leading, and reload the position from disk; `shaken` if a write here has failed."""
        self.is_lost = True
        self.is_shaken = self.is_shaken or shaken
        if self.leadership.leads:
            self.leadership.step_down(self.clock.seconds(), successor=successor)
        self.tell()

    def halt(self, reason: str, *, may_pass: bool = False) -> None:
        """Do nothing any more: going on could do harm. A later reason replaces a passing one."""
        if not self.halted or self.may_pass:
            self.halted, self.may_pass = reason, may_pass
        self.lose()

    def resume(self) -> None:
        """Resume after a halt that has passed, from the position on disk."""
        self.halted, self.resumed = "", self.halted
        self.leadership.wait(self.clock.seconds())
        self.tell()

    def tell(self) -> None:
        """Wake all threads that wait for a change."""
        self.progress_s = self.clock.seconds()
        with self.changed:
            self.changed.notify_all()
