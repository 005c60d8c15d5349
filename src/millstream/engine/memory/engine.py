"""The memory engine: an engine without a disk, for tests and simulation.

It keeps every promise of the protocol, checksums included, and breaks them on demand: a hook is
asked before each step (see `faults`) and may raise. After a simulated crash the engine is dead, and
`reopen` gives a new one with what was durable.

Rows lie in one sorted map. A commit gathers its changes beside it and moves them in at once; if
there is a reader of a snapshot just then, they go into a copy instead.
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
"""What a transaction does to rows; None deletes."""

_DELTAS = keys.range_of(keys.prefix(keys.DELTA))


class Image:
    """Rows in the order of their keys."""

    def __init__(self, cells: dict[bytes, Cell], order: list[bytes]) -> None:
        self.cells = cells
        self._order = order

    def copy(self) -> Image:
        """An image of its own with the same rows."""
        return Image(dict(self.cells), list(self._order))

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys with start <= key < stop, in order."""
        return self._order[bisect_left(self._order, start) : bisect_left(self._order, stop)]

    def apply(self, changes: Changes) -> None:
        """Take over what a transaction did."""
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
        """The value of a key, or None."""
        self._step("get")
        return self._value(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows with start <= key < stop."""
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
        """The sequence of the newest delta."""
        found = self._image.between(*_DELTAS)
        return keys.number(found[-1]) if found else 0

    def first_seq(self) -> int:
        """The sequence of the oldest delta."""
        found = self._image.between(*_DELTAS)
        return keys.number(found[0]) if found else 0

    def _value(self, key: bytes) -> bytes | None:
        cell = self._image.cells.get(key)
        return None if cell is None else checked(key, *cell)


class MemoryWriter(MemorySnapshot):
    """The turn to write."""

    def __init__(self, image: Image, step: Hook, write: Callable[[Changes], None]) -> None:
        super().__init__(image, step)
        self._write = write

    def commit(self, commit: Commit) -> None:
        """Make it durable."""
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
    """Rows in this process's memory.

    With `shared`, several stores over one engine look for each other's commits, as processes over
    one file do. It has no abilities: no SQL, and a forked child cannot use it.
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
        """What the engine says of its room."""
        self._image = image or Image({}, [])
        self._looking = 0
        """Open snapshots of the image: while there are any, it must stay as it is."""
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
        """The sequence of the newest delta."""
        with self.read() as snapshot:
            return snapshot.last_seq()

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Look every few milliseconds for what other stores over this engine have committed."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """There is none."""

    def shortage(self) -> Shortage | None:
        """What a test says."""
        return self.short

    def folder(self) -> Path | None:
        """There is no disk."""
        return None

    def recover(self) -> None:
        """Find out about the commit in doubt: from now on it is there, or it is not."""
        self._step("recover")
        changes, self._in_doubt = self._in_doubt, None
        if changes:
            self._apply(changes)

    def close(self) -> None:
        """Refuse further use; the rows stay for `reopen`."""
        self._closed = True

    def describe(self) -> dict[str, Any]:
        """Facts for `stats`."""
        return {"engine": "memory", "durability": self.durability, "rows": len(self._image.cells)}

    # What only tests do.

    def sync(self) -> None:
        """Make commits of relaxed durability safe from a loss of power."""
        self._step("sync")
        self._synced = None
        self._unsynced = []

    def reopen(self, *, lost: int = 0, faults: Hook | None = None) -> Self:
        """A new engine with what is durable, as after a crash or a close.

        After a loss of power the last `lost` of the commits that were not yet synced are missing.
        """
        return type(self)(
            durability=self.durability,
            shared=self.shared,
            faults=faults,
            image=self._survivors(lost),
        )

    def survivors(self, *, lost: int = 0) -> list[Row]:
        """The rows that `reopen` would find, in order, unchecked."""
        return [(key, cell[0]) for key, cell in sorted(self._survivors(lost).cells.items())]

    def corrupt(self, key: bytes, *, bit: int = 0) -> None:
        """Flip a bit in the stored value of a row, or in its checksum if the value is empty."""
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
