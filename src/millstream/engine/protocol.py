"""The engine: an ordered map from bytes to bytes with atomic, durable batches.

An engine knows nothing of logs or queues. It keeps rows, notices damage, and serialises writers;
everything above it is rules over a transaction.
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

Ability = Literal["sql", "forks", "paced", "replicated", "scrub", "changesets", "exchange"]
"""What an engine may be able to do beyond the protocol.

`sql`: its writer is a `SqlWriter`, its snapshots are `SqlReader`s. `forks`: it is `Suspendable`, so a handle may cross `os.fork`.
`paced`: it is `Paced`, because each of its commits costs a request. `replicated`: other nodes write the same rows, so damage that
one of them has must not be folded into what it writes. `scrub`: it is `Scrubbable` (`scrubbing`), so that
the background reads all its rows by and by. `changesets`: its writer is a `ChangesetWriter`, so that
changes to the application's tables travel to other nodes. `exchange`: it is `Exchangeable`, so that a
node of a cluster can keep its rows in it.
"""


class Shortage(NamedTuple):
    """Too little room on a disk: publishing is refused, so that what makes room can be written."""

    place: str
    free_bytes: int
    reserve_bytes: int
    owed_bytes: int = 0
    """What is free and needed, to bring into place what is stored already."""

    @property
    def is_severe(self) -> bool:
        """Whether nothing at all is written any more."""
        return self.free_bytes < self.reserve_bytes // 4

    def error(self) -> DiskFull:
        """What callers are told."""
        owed = f"{self.owed_bytes:,} of them are needed, " if self.owed_bytes else ""
        return DiskFull(
            f"the disk of {self.place} is full: {self.free_bytes:,} bytes are free, {owed}and "
            f"{self.reserve_bytes:,} are kept in reserve; nothing was stored, and reads go on. "
            "Make room on the disk, or truncate logs: publishing then works again without a restart",
            path=self.place,
            free_bytes=self.free_bytes,
            reserve_bytes=self.reserve_bytes,
        )


class Snapshot(Protocol):
    """A consistent view of all rows. Damaged rows raise `CorruptionError` when they are read."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows with start <= key < stop, in key order; there is no way backwards.

        Both ends have the same type of record (the first two bytes), or `stop` is the first key
        of the next type.
        """

    def last_seq(self) -> int:
        """The sequence of the newest delta; 0 in an empty store."""

    def first_seq(self) -> int:
        """The sequence of the oldest delta that has not been folded away; 0 in an empty store."""


class Writer(Snapshot, Protocol):
    """The turn to write: what is stored, and the one step that changes it.

    Nothing is visible to others before `commit` returns, and everything is durable then (unless
    the store was opened with relaxed durability).
    """

    def commit(self, commit: Commit) -> None:
        """Make a commit durable: what it drops goes, and then what it puts is put.

        Raises `WriteFailed` (nothing was sent, and nothing is left of it) or `OutcomeUnknown`.
        """


class SqlWriter(Protocol):
    """What a writer has beyond `Writer` where the engine has the ability `sql`."""

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement on the application's own tables."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Statements inside it are undone if it is left by an exception."""


class SqlReader(Protocol):
    """What a snapshot has beyond `Snapshot` where the engine has the ability `sql`."""

    def query(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Read the application's own tables."""


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
        """Undo and forget the statements inside it if it is left by an exception."""

    def finish(self) -> list[TableChange]:
        """Return all changes, in order."""

    def close(self) -> None:
        """Stop recording; a second call does nothing."""


class ChangesetWriter(Protocol):
    """What a writer has beyond `Writer` where the engine has the ability `changesets`."""

    def record_changes(self) -> TableRecorder:
        """Return a recorder for this transaction."""

    def apply_changes(self, changes: Sequence[TableChange]) -> None:
        """Apply changes that another writer recorded; raises `TablesDiffer` if that is impossible."""


class Exchangeable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `exchange`."""

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of all rows and tables into a new file."""

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Replace the engine's file by another file, and move the old one aside; reads wait."""


class Suspendable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `forks`."""

    def suspend(self) -> None:
        """Before a fork: wait for running reads, let go of all handles, hold back new ones."""

    def resume(self, *, in_child: bool) -> None:
        """After the fork: the next use opens the handles again."""


class Paced(Protocol):
    """What an engine has beyond `Engine` if it has the ability `paced`."""

    pace_s: float
    """How long a commit waits for callers that come one by one, so that many share it."""


class WouldWait(Exception):
    """The turn to write is another's, and the caller did not want to wait for it."""


class Engine(Protocol):
    """A place where rows live."""

    durability: Durability
    read_only: bool
    """Whether it refuses to write."""
    abilities: frozenset[Ability]
    """What callers may ask for beyond this protocol."""
    place: str
    """What the store is called in messages: a path, an address."""
    on_upkeep_due: Callable[[], None] | None
    """Called by the engine, on any thread, when `upkeep` would find something to do; it is quick."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write too, so that their commits must be looked for."""

    @property
    def writes_alone(self) -> bool:
        """Whether no other process can have the turn to write: one in this process is free at once."""

    def write(self, *, waits: bool = True) -> AbstractContextManager[Writer]:
        """Wait for the turn to write, across processes; leaving without a commit undoes it all.

        Without `waits`, a turn that another process has is not waited for: `WouldWait`.
        """

    def read(self) -> AbstractContextManager[Snapshot]:
        """A snapshot; short-lived, any thread."""

    def last_seq(self) -> int:
        """The sequence of the newest delta, by the cheapest way; asked before reads if `shared`."""

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Block until another process may have committed a delta after `seen`: True.

        False once `stop` is set, and every now and then, so that the caller can give up waiting.
        """

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Do what is due, such as a checkpoint, beside running writers.

        What needs them kept out is done inside `alone`, and takes milliseconds. Raises
        `OutcomeUnknown` if something committed may not be durable any more.
        """

    def shortage(self) -> Shortage | None:
        """Whether the disk has too little room; asked before each commit, so mostly remembered."""

    def folder(self) -> Path | None:
        """A folder on the disk of the store, for scratch files; None if it has none here."""

    def recover(self) -> None:
        """After a failed commit: make all that is committed durable again, and its outcome certain.

        Called while nothing is written here; reads go on. Raises `CorruptionError` if committed
        rows are not on the disk any more, and another error if it has to be tried again.
        """

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""

    def describe(self) -> dict[str, Any]:
        """Facts for `stats`, for people to read: kind, sizes, durability."""


def pace_of(engine: Engine) -> float:
    """How long a commit waits for callers that come one by one; 0: not at all."""
    return cast(Paced, engine).pace_s if "paced" in engine.abilities else 0.0


def query_tables(
    engine: Engine, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> SqlResult:
    """Read the application's own tables, as they are committed."""
    if "sql" not in engine.abilities:
        raise no_tables("ms.sql")
    with engine.read() as snapshot:
        return cast(SqlReader, snapshot).query(statement, parameters)


def no_tables(what: str) -> InvalidInput:
    """What is said where the engine has no SQL."""
    return InvalidInput(
        f"{what} needs an engine with SQL, and this store's has none: open a store in a file "
        "(SQLite), or keep the application's own tables elsewhere"
    )


# ---- scrub

Reference = Callable[[bytes, bytes], bytes | None]
"""From the key and value of a row to the key of another row that must be there too; None: there is none."""


class Unsound(Struct, frozen=True):
    """Something that is not as it was written; a later look at the same place says whether it still is."""

    stage: str
    at: str
    """Where a step has to begin to meet it first."""
    message: str


class MissingRow(NamedTuple):
    """A row that another row needs and that the engine does not have; commits not yet folded may have it."""

    at: str
    parent: bytes
    child: bytes


class StepBounds(NamedTuple):
    """Where one step ends."""

    rows: int
    bytes: int
    is_over: Callable[[], bool]
    """Whether the time of the step is used up; asked after each row."""


class ScrubStep(NamedTuple):
    """What one step has read and found."""

    next_at: str | None
    """Where the next step begins; None at the end of the stage."""
    rows: int
    bytes: int
    fraction: float
    """How much of the stage lies behind, from 0 to 1; an estimate."""
    unsound: list[Unsound]
    missing: list[MissingRow]


class Scrubbable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `scrub`."""

    scrub_share: float
    """The share of time that a scrub may read for; 0 if it is off."""
    scrub_stages: tuple[str, ...]

    def scrub(self, stage: str, at: str, bounds: StepBounds, needs: Reference) -> ScrubStep:
        """Read on in a stage, in one snapshot; an empty place is its beginning.

        Damage is an answer, never an error. Raises `Closed`, `Overloaded` and the like if nothing
        can be read now.
        """

    def scrubbed_file(self) -> Path | None:
        """The file that is read, wherever links lead; None if there is none."""


# ---- polling

LOOK_S_MIN = 0.002
LOOK_S_MAX = 0.010

TURN_S = 0.1
"""How long one call looks: its caller may have nobody left to tell."""


def poll(has_changed: Callable[[], bool], stop: threading.Event) -> bool:
    """Look every few milliseconds, less often with time; True at the first change.

    False once `stop` is set, or after a while.
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
