"""The memory engine: an engine without a disk, for tests and simulation.

The engine keeps every promise of the protocol, checksums included, and breaks promises on demand: it
calls a hook before each step (see `faults`), and the hook may raise. After a simulated crash the engine
is dead, and `reopen` returns a new engine with the durable rows.

Rows lie in one sorted map. A commit collects its changes, and applies them together. While a snapshot
is open, the commit applies them to a copy of the map instead.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from millstream.engine.checksum import checked, row_checksum
from millstream.engine.commit import Commit, Row
from millstream.engine.memory.faults import Crash, Torn
from millstream.engine.place import IN_MEMORY
from millstream.engine.protocol import Ability, Durability, Shortage, WouldWait, poll
from millstream.errors import Closed, InvalidInput, OutcomeUnknown
from millstream.format import keys

Hook = Callable[[str], None]
Cell = tuple[bytes, int]
"""A value and its checksum."""

Changes = dict[bytes, Cell | None]
"""The changes of a transaction: a new cell by key, or None for a deletion."""

_DELTAS = keys.range_of(keys.prefix(keys.DELTA))


class Image:
    """Rows in the order of their keys."""

    def __init__(self, cells: dict[bytes, Cell], order: list[bytes]) -> None:
        self.cells = cells
        self._order = order

    def copy(self) -> Image:
        """Return an independent copy of the rows."""
        return Image(dict(self.cells), list(self._order))

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys with start <= key < stop, in order."""
        return self._order[bisect_left(self._order, start) : bisect_left(self._order, stop)]

    def apply(self, changes: Changes) -> None:
        """Apply the changes of a transaction."""
        gone = False
        for key, cell in changes.items():
            if cell is None:
                gone = self.cells.pop(key, None) is not None or gone
            else:
                if key not in self.cells:
                    insort(self._order, key)
                self.cells[key] = cell
        if gone:
            self._order = [key for key in self._order if key in self.cells]


class MemorySnapshot:
    """Reads of one image."""

    def __init__(self, image: Image, step: Hook) -> None:
        self._image = image
        self._step = step

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        self._step("get")
        return self._value(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with start <= key < stop."""
        self._step("scan")
        rows: list[Row] = []
        for key in self._image.between(start, stop):
            if len(rows) >= limit:
                break
            value = self._value(key)
            if value is not None:
                rows.append((key, value))
        return rows

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        deltas = self._image.between(*_DELTAS)
        return keys.number(deltas[-1]) if deltas else 0

    def _value(self, key: bytes) -> bytes | None:
        cell = self._image.cells.get(key)
        return None if cell is None else checked(key, *cell)


class MemoryWriter(MemorySnapshot):
    """The turn to write."""

    def __init__(self, image: Image, step: Hook, write: Callable[[Changes], None]) -> None:
        super().__init__(image, step)
        self._write = write

    def commit(self, commit: Commit) -> None:
        """Make a commit durable."""
        changes: Changes = {}
        for key in commit.deletes:
            self._step("delete")
            changes[key] = None
        for start, stop in commit.ranges:
            self._step("delete")
            changes.update(dict.fromkeys(self._image.between(start, stop)))
        for key, value in commit.rows:
            self._step("put")
            changes[key] = (value, row_checksum(key, value))
        self._write(changes)


class MemoryEngine:
    """Rows in the memory of this process, without abilities: no SQL, and no use in a forked child.

    With `shared`, several stores over one engine poll for each other's commits, as processes over
    a file do.
    """

    abilities: frozenset[Ability] = frozenset()
    read_only = False
    place = IN_MEMORY

    def __init__(
        self,
        *,
        durability: Durability = "full",
        shared: bool = False,
        faults: Hook | None = None,
        image: Image | None = None,
    ) -> None:
        self.durability: Durability = durability
        self.shared = shared
        self.writes_alone = not shared
        self.faults = faults
        self.commits = 0
        self.on_upkeep_due: Callable[[], None] | None = None
        self.short: Shortage | None = None
        """The shortage that `shortage` returns, set by tests."""
        self._image = image or Image({}, [])
        self._looking = 0
        """Number of open snapshots of the image; they forbid changes in place."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._synced: Image | None = None
        self._unsynced: list[Changes] = []
        self._in_doubt: Changes | None = None
        self._dead = False
        self._closed = False

    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[MemoryWriter]:
        """Wait for the turn to write; leaving without a commit undoes it all."""
        if not waits and self._turn.locked():
            raise WouldWait
        with self._turn:
            self._check_open()
            assert self._in_doubt is None, "a write after an unknown outcome: recover first"
            self._step("begin")
            yield MemoryWriter(self._image, self._step, self._commit)

    @contextmanager
    def read(self) -> Iterator[MemorySnapshot]:
        """A snapshot of what is committed now."""
        self._check_open()
        self._step("read")
        with self._lock:
            image = self._image
            self._looking += 1
        try:
            yield MemorySnapshot(image, self._step)
        finally:
            with self._lock:
                if image is self._image:
                    self._looking -= 1

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        with self.read() as snapshot:
            return snapshot.last_seq()

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Poll for commits of other stores over this engine."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Do nothing: memory needs no upkeep."""

    def shortage(self) -> Shortage | None:
        """Return the shortage that a test has set."""
        return self.short

    def folder(self) -> Path | None:
        """Return None: the rows are on no disk."""
        return None

    def recover(self) -> None:
        """Settle the commit in doubt: apply it or drop it, as the fault says."""
        self._step("recover")
        changes, self._in_doubt = self._in_doubt, None
        if changes:
            self._apply(changes)

    def close(self) -> None:
        """Refuse further use; the rows stay for `reopen`."""
        self._closed = True

    def describe(self) -> dict[str, Any]:
        """Return facts for `stats`."""
        return {"engine": "memory", "durability": self.durability, "rows": len(self._image.cells)}

    # What only tests do.

    def sync(self) -> None:
        """Make commits of relaxed durability safe from a loss of power."""
        self._step("sync")
        self._synced = None
        self._unsynced = []

    def reopen(self, *, lost: int = 0, faults: Hook | None = None) -> Self:
        """Return a new engine with the durable rows, as after a crash or a close.

        A loss of power drops the last `lost` commits that were not synced.
        """
        return type(self)(
            durability=self.durability,
            shared=self.shared,
            faults=faults,
            image=self._survivors(lost),
        )

    def survivors(self, *, lost: int = 0) -> list[Row]:
        """Return the rows that `reopen` would have, in order, unchecked."""
        return [(key, cell[0]) for key, cell in sorted(self._survivors(lost).cells.items())]

    def corrupt(self, key: bytes, *, bit: int = 0) -> None:
        """Flip a bit in the value of a row, or in the checksum of an empty value."""
        value, crc = self._image.cells[key]
        if not value:
            self._image.cells[key] = (value, crc ^ 1)
            return
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        self._image.cells[key] = (bytes(flipped), crc)

    def _survivors(self, lost: int) -> Image:
        if not 0 <= lost <= len(self._unsynced):
            raise InvalidInput(f"{len(self._unsynced)} commits can be lost, not {lost}")
        if lost and self._synced is not None:
            image = self._synced.copy()
            for changes in self._unsynced[:-lost]:
                image.apply(changes)
            return image
        image = self._image.copy()
        image.apply(self._in_doubt or {})
        return image

    def _commit(self, changes: Changes) -> None:
        self._step("commit")
        try:
            self._step("sent")
        except Torn as torn:
            self._in_doubt = changes if torn.kept else {}
            raise OutcomeUnknown(f"{torn}; it may or may not be durable") from torn
        except Crash as crash:
            self._in_doubt = changes if crash.kept else {}
            raise
        if self.durability == "relaxed":
            if self._synced is None:
                self._synced = self._image.copy()
            self._unsynced.append(changes)
        self._apply(changes)
        self.commits += 1
        self._step("committed")

    def _apply(self, changes: Changes) -> None:
        with self._lock:
            if self._looking:
                self._image = self._image.copy()
                self._looking = 0
            self._image.apply(changes)

    def _step(self, name: str) -> None:
        if self._dead:
            raise Crash("this engine has crashed: reopen() gives another")
        if self.faults is not None:
            try:
                self.faults(name)
            except Crash:
                self._dead = True
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the memory engine was closed")
