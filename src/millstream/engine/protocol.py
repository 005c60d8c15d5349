"""The protocol of engines: ordered maps from bytes to bytes with atomic, durable batches.

An engine knows nothing of logs or queues. It stores rows, notices damage, and serialises writers. The
packages above it are rules over a transaction.

Optional abilities have protocols of their own: a caller asks `engine.abilities`, and casts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

from msgspec import Struct

from millstream.engine.commit import Commit, Row
from millstream.errors import DiskFull, InvalidInput
from millstream.record import SqlResult

Durability = Literal["full", "relaxed"]
Mode = Literal["rw", "r"]
"""Whether a store is opened to be read and written, or only to be read."""

Ability = Literal["sql", "forks", "paced", "replicated", "scrub", "changesets", "pages", "exchange"]
"""An ability of an engine beyond `Engine`.

    sql          the writer is a `SqlWriter`, snapshots are `SqlReader`s
    forks        the engine is `Suspendable`: a handle may cross `os.fork`
    paced        the engine is `Paced`: each commit costs a request
    replicated   other nodes write the same rows, so a damaged node must not fold its rows
    scrub        the engine is `Scrubbable`: the background reads all rows again
    changesets   the writer is a `ChangesetWriter`: changes to the application's tables travel to nodes
    pages        the engine is `Paged`: its rows are the pages of a SQLite file
    exchange     the engine is `Exchangeable`: a node of a cluster can keep its rows in a file
"""


class Shortage(NamedTuple):
    """Too little free space on a disk: appends are refused, deletes can still be written."""

    place: str
    free_bytes: int
    reserve_bytes: int
    owed_bytes: int = 0
    """Free bytes that a checkpoint still needs for commits in the write-ahead log."""

    @property
    def is_severe(self) -> bool:
        """True if the engine refuses every write."""
        return self.free_bytes < self.reserve_bytes // 4

    def error(self) -> DiskFull:
        """Return the error for callers."""
        owed = f"{self.owed_bytes:,} of them are needed, " if self.owed_bytes else ""
        return DiskFull(
            f"the disk of {self.place} is full: {self.free_bytes:,} bytes are free, {owed}and "
            f"{self.reserve_bytes:,} are kept in reserve; nothing was stored, and reads go on. "
            "Free space on the disk, or truncate logs: publishing then works again without a restart",
            path=self.place,
            free_bytes=self.free_bytes,
            reserve_bytes=self.reserve_bytes,
        )


class Snapshot(Protocol):
    """A consistent view of all rows. Damaged rows raise `CorruptionError` when they are read."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with start <= key < stop, in ascending order.

        Both keys have the same type of record (the first two bytes), or `stop` is the first key
        of the next type.
        """

    def last_seq(self) -> int:
        """Return the sequence of the newest delta, which is never deleted; 0 in an empty store."""


class Writer(Snapshot, Protocol):
    """The turn to write: a view of the rows, and the commit that changes them.

    No reader sees a change before `commit` returns. All changes are durable then, unless the store
    was opened with relaxed durability.
    """

    def commit(self, commit: Commit) -> None:
        """Apply the deletes first, then the puts, and make the commit durable.

        Raises `WriteFailed` if no change was stored, or `OutcomeUnknown`.
        """


class SqlWriter(Protocol):
    """What a writer has beyond `Writer` where the engine has the ability `sql`."""

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement on the application's own tables."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo the statements inside the block if an exception leaves it."""


class InteractiveWriter(Writer, SqlWriter, Protocol):
    """A writer whose caller looks at the results of statements before the commit.

    Another thread than the one that has begun may end the transaction.
    """

    @property
    def is_open(self) -> bool:
        """Whether the transaction exists; a statement that fails may end it."""

    def begin_statements(self) -> None:
        """Prepare for the first statement."""

    def part(self, action: str) -> SqlResult:
        """Run "SAVEPOINT", "RELEASE" or "ROLLBACK TO" for a part of the statements."""

    def check_constraints(self) -> None:
        """Raise `ConstraintViolation` if a deferred constraint does not hold; before the commit."""

    def interrupt(self) -> None:
        """End the running statement with `WriteFailed`; for any thread."""


class WriteEvents(Protocol):
    """Reports writes of any process to a store: one thread waits, and any thread can end its wait."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write or a wake-up; return whether a write came since the last call.

        A write is reported before its commit is visible. Raises `OSError` if no more writes are reported.
        """

    def wake(self) -> None:
        """End the wait of the other thread."""


class SqlEngine(Protocol):
    """What an engine has beyond `Engine` where it has the ability `sql`."""

    def refuse_posts(self, reason: str) -> None:
        """Refuse messages that other programs post by SQL; they see the reason."""

    def write_events(self) -> WriteEvents:
        """Report writes from now on; raise `OSError` where the system does not report them."""


class SqlReader(Protocol):
    """What a snapshot has beyond `Snapshot` where the engine has the ability `sql`."""

    def query(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Read the application's own tables."""

    def select(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Return plain rows for one of our own statements; raise `InvalidInput` without its table."""


class TableChange(Struct, frozen=True, array_like=True):
    """One change of a transaction to the application's own tables: a changeset, or a statement."""

    changeset: bytes = b""
    statement: str = ""
    """A statement that changes the schema: changesets hold only rows."""


class TablesDiffer(Exception):
    """A change cannot be applied, because the tables are not those in which it was recorded."""


class TableRecorder(Protocol):
    """Runs statements of one transaction, and records their changes in order."""

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and record its changes."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo and forget the statements inside the block if an exception leaves it."""

    def finish(self) -> list[TableChange]:
        """Return all changes, in order."""

    def close(self) -> None:
        """Stop recording; a second call does nothing."""


class ChangesetWriter(Protocol):
    """What a writer has beyond `Writer` where the engine has the ability `changesets`."""

    def record_changes(self) -> TableRecorder:
        """Return a recorder for this transaction."""

    def apply_changes(self, changes: Sequence[TableChange]) -> None:
        """Apply recorded changes in order; raise `TablesDiffer` if the tables do not fit."""


class FilePages(Protocol):
    """The pages of one snapshot of a SQLite file."""

    page_bytes: int
    pages: int
    """The number of pages."""
    has_checksums: bool
    """True if the last bytes of each page are its checksum."""

    def read(self, first_page: int, count: int) -> bytes:
        """Return pages, numbered from 1."""


class Paged(Protocol):
    """What an engine has beyond `Engine` if it has the ability `pages`."""

    def pages(self) -> AbstractContextManager[tuple[FilePages, Snapshot]]:
        """Hold a snapshot, to read its pages in large pieces and its rows, beside running commits."""

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of all rows and tables into a new file."""

    def verify(self, stop: Callable[[], bool]) -> bool:
        """Read every page, beside running commits; False if `stop` ended it.

        Raises `CorruptionError` for a damaged page.
        """


class Exchangeable(Paged, Protocol):
    """What an engine has beyond `Paged` if it has the ability `exchange`."""

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Replace the engine's file by another file, and move the old one aside; reads wait."""


class Suspendable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `forks`."""

    def suspend(self) -> None:
        """Before a fork: wait for running reads, let go of all handles, hold back new ones."""

    def resume(self, *, in_child: bool) -> None:
        """After the fork: let the next use open the handles again."""


class Paced(Protocol):
    """What an engine has beyond `Engine` if it has the ability `paced`."""

    pace_s: float
    """How long a commit waits for further callers, so that many callers share one request."""


class WouldWait(Exception):
    """Another process has the turn to write, and the caller does not wait, or no longer."""


class Engine(Protocol):
    """A place where rows live."""

    durability: Durability
    read_only: bool
    """True if the engine refuses to write."""
    abilities: frozenset[Ability]
    """Abilities beyond this protocol."""
    place: str
    """The name of the store in messages: a path or an address."""
    on_upkeep_due: Callable[[], None] | None
    """A quick function that the engine calls, on any thread, when `upkeep` has work to do.

    The store assigns it, because a store is opened on an engine that exists already.
    """

    @property
    def shared(self) -> bool:
        """True if other processes may write; readers then poll for new commits."""

    @property
    def writes_alone(self) -> bool:
        """True if no other process can have the turn to write, so that `write` never waits for it."""

    def write(self, *, waits: bool = True) -> AbstractContextManager[Writer]:
        """Wait for the turn to write, across processes; leaving without a commit undoes all changes.

        Raise `WouldWait` if another process has the turn and a deferred signal (`interrupts`) comes;
        without `waits`, at once.
        """

    def read(self) -> AbstractContextManager[Snapshot]:
        """Open a snapshot, on any thread, for a short time."""

    def last_seq(self) -> int:
        """Return the sequence of the newest delta, cheaply; called before reads if `shared`."""

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Block until another process may have committed a delta after `seen`, then return True.

        Return False once `stop` is set, and after a while, so that the caller can stop waiting.
        """

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Do work that is due, such as a checkpoint, beside running writers.

        Work that must exclude writers runs inside `alone`, and takes milliseconds. Raises
        `OutcomeUnknown` if a commit may not be durable any more.
        """

    def shortage(self) -> Shortage | None:
        """Return the shortage of free space, or None; the answer is cached, as commits ask often."""

    def folder(self) -> Path | None:
        """Return a folder on the disk of the store for scratch files; None without a disk."""

    def recover(self) -> None:
        """After a failed commit, make all commits durable again, and the outcome certain.

        The caller excludes writers; reads go on. Raises `CorruptionError` if committed rows are not
        on the disk any more, and another error if the caller has to try again.
        """

    def close(self) -> None:
        """Close all handles; a second call does nothing."""

    def describe(self) -> dict[str, Any]:
        """Return facts for `stats`: kind, sizes, durability."""


def pace_of(engine: Engine) -> float:
    """Return how long a commit waits for callers that come one by one; 0 without the ability."""
    return cast(Paced, engine).pace_s if "paced" in engine.abilities else 0.0


def query_tables(
    engine: Engine, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> SqlResult:
    """Read the committed state of the application's own tables."""
    if "sql" not in engine.abilities:
        raise no_tables("ms.sql")
    with engine.read() as snapshot:
        return cast(SqlReader, snapshot).query(statement, parameters)


def no_tables(what: str) -> InvalidInput:
    """Return the error for an engine without SQL."""
    return InvalidInput(
        f"{what} needs an engine with SQL, and this store's has none: open a store in a file "
        "(SQLite), or keep the application's own tables elsewhere"
    )


# ---- scrub

Reference = Callable[[bytes, bytes], bytes | None]
"""Maps the key and value of a row to the key of a row that it refers to; None without a reference."""


class Unsound(Struct, frozen=True):
    """A damaged place of an engine; a later step from the same place tells whether it is mended."""

    stage: str
    at: str
    """The place from which a step meets the damage first."""
    message: str


class MissingRow(NamedTuple):
    """A referenced row that the engine does not have; commits that are not folded may have it."""

    at: str
    parent: bytes
    child: bytes


class StepBounds(NamedTuple):
    """The bounds of one step."""

    rows: int
    bytes: int
    is_over: Callable[[], bool]
    """Returns True when the time of the step is used up; called after each row."""


class ScrubStep(NamedTuple):
    """The result of one step."""

    next_at: str | None
    """The place where the next step begins; None at the end of the stage."""
    rows: int
    bytes: int
    fraction: float
    """The share of the stage that is read, from 0 to 1; an estimate."""
    unsound: list[Unsound]
    missing: list[MissingRow]


class Scrubbable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `scrub`."""

    scrub_share: float
    """The share of time that a scrub may spend reading; 0 turns the scrub off."""
    scrub_stages: tuple[str, ...]

    def scrub(self, stage: str, at: str, bounds: StepBounds, needs: Reference) -> ScrubStep:
        """Continue to read a stage, in one snapshot; an empty place is the beginning.

        Damage is part of the result, never an error. Raises an error such as `Closed` or
        `Overloaded` if no row can be read now.
        """

    def scrubbed_file(self) -> Path | None:
        """Return the file that the scrub reads, with links resolved; None without a file."""


# ---- polling

LOOK_S_MIN = 0.002
LOOK_S_MAX = 0.010

TURN_S = 0.1
"""How long one call of `poll` lasts: its caller may have no waiters left."""


def poll(has_changed: Callable[[], bool], stop: threading.Event) -> bool:
    """Check for a change every few milliseconds, less often with time; True at the first change.

    Return False once `stop` is set, or after `TURN_S`.
    """
    waited_s, pause_s = 0.0, LOOK_S_MIN
    while waited_s < TURN_S:
        if stop.wait(pause_s):
            return False
        if has_changed():
            return True
        waited_s += pause_s
        pause_s = min(pause_s * 1.5, LOOK_S_MAX)
    return False
