"""The replicated engine: a node's own rows, written only by the leader and only with its quorum.

The store above knows nothing of the cluster. On a follower the store observes commits as if another
process had made them; the engine is then read-only, and refuses every write with `NotLeader` before
anything is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from millstream.cluster.node.member import ClusterMember
from millstream.engine.commit import Commit, Row
from millstream.engine.protocol import (
    TURN_S,
    Ability,
    ChangesetWriter,
    Durability,
    Engine,
    FilePages,
    Paged,
    Reference,
    Scrubbable,
    ScrubStep,
    Shortage,
    Snapshot,
    StepBounds,
    TableRecorder,
    WouldWait,
    Writer,
    no_tables,
)
from millstream.record import SqlResult


class ReplicatedEngine:
    """An engine around a node's own engine."""

    shared = True
    writes_alone = True
    """Other nodes have separate rows."""

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._inner: Engine = member.engine
        self.durability: Durability = self._inner.durability
        hidden = {"forks", "changesets", "exchange"}  # the node alone uses them
        self.abilities: frozenset[Ability] = self._inner.abilities - hidden | {"replicated"}
        self.place = self._inner.place

    @property
    def read_only(self) -> bool:
        """Whether another node writes."""
        return not self._member.leadership.leads

    @property
    def on_upkeep_due(self) -> Callable[[], None] | None:
        """Called when `upkeep` would find something to do."""
        return self._inner.on_upkeep_due

    @on_upkeep_due.setter
    def on_upkeep_due(self, call: Callable[[], None] | None) -> None:
        self._inner.on_upkeep_due = call

    def write(self, *, waits: bool = True) -> ReplicatedWriter:
        """Return the leader's turn to write. Raises `NotLeader` on a follower.

        A commit waits for other machines, so an event loop, which never waits, does not commit
        itself.
        """
        self._member.check_leads()
        if not waits:
            raise WouldWait
        return ReplicatedWriter(self._member)

    def read(self) -> AbstractContextManager[Snapshot]:
        """A snapshot of this node's rows."""
        return self._inner.read()

    def last_seq(self) -> int:
        """The sequence of this node's newest delta."""
        return self._inner.last_seq()

    def await_change(self, sequence: int, stop: threading.Event) -> bool:
        """Block for a moment, until the node has applied entries."""
        with self._member.changed:
            if stop.is_set() or self.last_seq() != sequence:
                return not stop.is_set()
            self._member.changed.wait(TURN_S)
        return not stop.is_set() and self.last_seq() != sequence

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Run the upkeep of this node: checkpoints are local."""
        self._inner.upkeep(_Both(alone, self._member.turn))

    def shortage(self) -> Shortage | None:
        """Return the shortage of space on this node's disk, if there is one."""
        return self._inner.shortage()

    def folder(self) -> Path | None:
        """A folder on this node's disk."""
        return self._inner.folder()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of this node's rows and tables into a new file."""
        cast(Paged, self._inner).copy_to(path)

    def pages(self) -> AbstractContextManager[tuple[FilePages, Snapshot]]:
        """Hold a snapshot of this node's file, to read its pages and rows."""
        return cast(Paged, self._inner).pages()

    def verify(self, stop: Callable[[], bool]) -> bool:
        """Read every page of this node's file; False if `stop` ended it."""
        return cast(Paged, self._inner).verify(stop)

    @property
    def scrub_share(self) -> float:
        """Return the share of time for scrubbing: every node scrubs its own file."""
        return cast(Scrubbable, self._inner).scrub_share

    @property
    def scrub_stages(self) -> tuple[str, ...]:
        """The scrub stages of this node's file."""
        return cast(Scrubbable, self._inner).scrub_stages

    def scrub(self, stage: str, at: str, bounds: StepBounds, needs: Reference) -> ScrubStep:
        """Read on in this node's rows."""
        return cast(Scrubbable, self._inner).scrub(stage, at, bounds, needs)

    def scrubbed_file(self) -> Path | None:
        """This node's file."""
        return cast(Scrubbable, self._inner).scrubbed_file()

    def recover(self) -> None:
        """Make certain what is on this node's disk."""
        self._member.recover()

    def close(self) -> None:
        """Do nothing: the node closes the rows when it stops."""

    def describe(self) -> dict[str, Any]:
        """Facts of this node's own engine."""
        return self._inner.describe()


class ReplicatedWriter:
    """The leader's turn to write, while it is entered."""

    __slots__ = ("_entered", "_member", "_recorder", "_writer")

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._recorder: TableRecorder | None = None

    def __enter__(self) -> ReplicatedWriter:
        member = self._member
        member.turn.acquire()
        try:
            member.check_leads()
            self._entered = member.engine.write()
            self._writer: Writer = self._entered.__enter__()
        except BaseException:
            member.turn.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._recorder is not None:
                self._recorder.close()
            self._entered.__exit__(kind, error, trace)
        finally:
            self._member.turn.release()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        return self._writer.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows with start <= key < stop."""
        return self._writer.scan(start, stop, limit=limit)

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        return self._writer.last_seq()

    def commit(self, commit: Commit) -> None:
        """Return when a quorum and this node have stored the commit.

        Raises `NotLeader` or `NoQuorum` (nothing was stored), or `OutcomeUnknown`.
        """
        tables = [] if self._recorder is None else self._recorder.finish()
        self._member.commit(self._writer, commit, tables)

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement on the application's tables; its changes travel with the commit."""
        return self._recording().run(statement, parameters)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the statements inside if an exception leaves the block."""
        with self._recording().savepoint():
            yield

    def _recording(self) -> TableRecorder:
        if self._recorder is None:
            if "changesets" not in self._member.engine.abilities:
                raise no_tables("tx.sql")
            self._recorder = cast(ChangesetWriter, self._writer).record_changes()
        return self._recorder


class _Both:
    """Two reusable locks, taken in order."""

    def __init__(
        self, first: AbstractContextManager[object], second: AbstractContextManager[object]
    ) -> None:
        self._first, self._second = first, second

    def __enter__(self) -> None:
        self._first.__enter__()
        try:
            self._second.__enter__()
        except BaseException:
            self._first.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._second.__exit__(kind, error, trace)
        finally:
            self._first.__exit__(kind, error, trace)
