"""A transaction: the reads and writes of one operation, inside the group that is being committed.

An operation checks first and changes then. The rows of an operation are held back until the operation
has succeeded, and changes of entities are undone if it raises. So a failing operation undoes itself
alone. The rows of a group are held back until the group is durable, and only then enter the overlay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

from millstream.engine.commit import Commit, Row, Value, loaded
from millstream.engine.protocol import Snapshot, SqlReader, SqlWriter, no_tables
from millstream.errors import CorruptionError, DiskFull, Overloaded, WriteFailed
from millstream.format import ids, keys
from millstream.limits import MESSAGE_ID_MAX, Limits
from millstream.record import SqlResult
from millstream.store.commit.draft import Draft, joined
from millstream.store.state.delta import Delta, encode, fold_position
from millstream.store.state.entity import Entity
from millstream.store.state.overlay import Overlay, PendingRows
from millstream.store.state.state import State
from millstream.store.state.view import View

T = TypeVar("T")
E = TypeVar("E", bound=Entity)
Operation = Callable[["WriteTransaction"], T]


class WriteTransaction:
    """The door through which operations reach the store; valid only while one runs."""

    __slots__ = (
        "_draft",
        "_dropped",
        "_drops",
        "_folder",
        "_inline",
        "_is_certain",
        "_layer",
        "_rows",
        "_stored",
        "_wrote",
        "delta",
        "encoded",
        "limits",
        "refusal",
        "state",
        "store_ms",
        "wall_ms",
    )

    def __init__(
        self,
        state: State,
        stored: Snapshot,
        limits: Limits,
        *,
        folder: Path | None = None,
        refusal: DiskFull | None = None,
    ) -> None:
        """`folder` is for the temporary file of a large commit."""
        self.state = state
        self._stored, self._folder = stored, folder
        self._draft: Draft | None = None
        self.limits = limits
        self.refusal = refusal
        """The error for operations that publish while the disk is full; other operations may run."""
        self._wrote = False
        """Whether statements on the application's tables were run."""
        self._layer: PendingRows | None = None
        self._is_certain = True
        """Whether the delta is certain to be readable, so that nothing has to decode it for a check."""
        self.wall_ms = state.clock.wall_ms()
        boot_ms, time = state.clock.boot_ms(), state.time
        self.store_ms = boot_ms + time.offset_ms
        self.delta: Delta[Any] = Delta(
            state.seq + 1,
            self.wall_ms,
            self.store_ms,
            boot_ms,
            time.boot_id,
            state.next_id,
            state.next_entity,
            [],
            [],
            [],
        )

    # For operations.

    @property
    def writer(self) -> Draft:
        """The stored rows, with the writes of this commit over them; most commits need none."""
        draft = self._draft
        if draft is None:
            draft = self._draft = Draft(self._stored, self._folder)
        return draft

    @property
    def view(self) -> View:
        """The rows and entities before this operation, for rules that only read."""
        return View(self.state, self.writer, self.overlay)

    @property
    def overlay(self) -> Overlay | PendingRows:
        """The small rows of durable commits, and of the operations of this group before this operation."""
        delta = self.delta
        if not delta.puts and not delta.drops:
            return self.state.overlay
        if self._layer is None:
            self._layer = PendingRows(self.state.overlay, self.writer.is_dropped)
        self._layer.set(delta.puts)
        return self._layer

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, including the writes of this operation."""
        value = self._inline.get(key)
        if value is None and key in self._rows:
            value = loaded(self._rows[key])
        if value is None and key not in self._dropped:
            value = self.overlay.get(key)
            if value is None:
                value = self.writer.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` small rows of a range, including the writes of this operation."""
        rows = self.view.scan(start, stop, limit=limit)
        if self._dropped:
            full = len(rows) == limit
            rows = [row for row in rows if row[0] not in self._dropped]
            if full and len(rows) < limit:
                limit_with_dropped = limit + len(self._dropped)
                rows = self.view.scan(start, stop, limit=limit_with_dropped)
                rows = [row for row in rows if row[0] not in self._dropped][:limit]
        if self._inline or self._rows:
            values = dict(rows)
            values.update((k, v) for k, v in self._inline.items() if start <= k < stop)
            values.update((k, loaded(v)) for k, v in self._rows.items() if start <= k < stop)
            rows = sorted(values.items())[:limit]
        return rows

    def entity(self, key: bytes, kind: type[E]) -> E:
        """Return the entity of a key, to be read only: rules alter entities by `change`."""
        entity = self.state.entities.get(key)
        if entity is None:
            entity = self.state.entity(key, self.writer)
        assert type(entity) is kind
        return entity

    def notice_folds(self) -> None:
        """Drop rows from the overlay that other processes have folded, before reading many rows.

        Without this call the overlay keeps such rows until the next commit of another process arrives.
        """
        self.state.overlay.prune(fold_position(self.writer))

    def change(self, key: bytes, change: Any) -> None:
        """Apply a change to an entity, and add the change to the commit; None removes the entity."""
        state = self.state
        if key not in state.published:
            state.keep(key, self.writer)
        self.delta.changes.append((key, change))  # first: a change that fails is undone as well
        if type(change) not in state.computed:
            self._is_certain = False
        if change is not None:
            state.entities[key].apply(change)
        else:
            state.change(key, None)

    def put(self, key: bytes, value: bytes, *, home: bool = False) -> None:
        """Write a row, replacing an earlier value; the drops of the same operation come first.

        Small rows go into the delta. Large rows, and rows with `home`, go to their base table at once.
        """
        if type(value) is not bytes:
            self._is_certain = False
        if not home and len(value) <= self.limits.inline_bytes_max:
            self._inline[key] = value
        else:
            self._rows[key] = self.writer.hold(value)

    def put_all(self, rows: dict[bytes, bytes]) -> None:
        """Write several rows, as `put` does."""
        inline_bytes_max = self.limits.inline_bytes_max
        for key, value in rows.items():
            if type(value) is not bytes:
                self._is_certain = False
            if len(value) <= inline_bytes_max:
                self._inline[key] = value
            else:
                self._rows[key] = self.writer.hold(value)

    def drop(self, key: bytes) -> None:
        """Delete one row."""
        self._dropped.add(key)
        self._drops.append((key, key + b"\x00"))

    def drop_some(self, start: bytes, stop: bytes, *, limit: int) -> bool:
        """Delete the first `limit` small rows of a range; return True if more rows remain."""
        rows = self.scan(start, stop, limit=limit + 1)
        for key, _ in rows[:limit]:
            self.erase(key)
        return len(rows) > limit

    def drop_all(self, start: bytes, stop: bytes) -> None:
        """Delete every row of a range in one commit, including rows that this operation has put."""
        for put in (self._inline, self._rows):
            for key in [key for key in put if start <= key < stop]:
                del put[key]
        self._drops.append((start, stop))

    def erase(self, key: bytes) -> None:
        """Delete one small row, including a row that this operation has put."""
        self._inline.pop(key, None)
        self._rows.pop(key, None)
        self.drop(key)

    def take_ids(self, count: int) -> int:
        """Reserve contiguous message ids, which are never reused, and return the first."""
        if self.refusal is not None:
            raise self.refusal
        first = self.delta.next_id
        if first + count > MESSAGE_ID_MAX:
            raise Overloaded("this store has no message ids left")
        self.delta.next_id = first + count
        return first

    def take_entity_id(self) -> int:
        """Return a new id for a log, a queue or another entity; ids are never reused."""
        self.delta.next_entity += 1
        return self.delta.next_entity - 1

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement on the tables of the application, as part of this commit."""
        if self.refusal is not None:
            raise self.refusal
        result = self._tables().sql(statement, parameters)
        self._wrote = True
        return result

    def select(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return plain rows for one of our own statements on tables of the application."""
        self._tables()
        return cast(SqlReader, self._stored).select(statement, parameters)

    def note_statements(self, *, have_written: bool) -> None:
        """Note that the writer has run statements on the application's tables before this object."""
        self._wrote = self._wrote or have_written

    def savepoint(self) -> AbstractContextManager[None]:
        """Return a block whose statements on application tables are undone by an error."""
        return self._tables().savepoint()

    def _tables(self) -> SqlWriter:
        stored: Any = self._stored
        if not hasattr(stored, "sql"):  # the engine lacks this ability
            raise no_tables("tx.sql")
        return cast(SqlWriter, stored)

    # For the commit path.

    def run(self, operation: Operation[T]) -> T:
        """Run one operation; an error undoes the operation and leaves the others of the group alone."""
        delta = self.delta
        first_change, next_id, next_entity = len(delta.changes), delta.next_id, delta.next_entity
        self._inline: dict[bytes, bytes] = {}
        self._rows: dict[bytes, Value] = {}
        self._drops: list[tuple[bytes, bytes]] = []
        self._dropped: set[bytes] = set()
        """The keys of single dropped rows."""
        try:
            result = operation(self)
        except BaseException:
            delta.next_id, delta.next_entity = next_id, next_entity
            self._undo(first_change)
            raise
        if self._rows or self._drops:
            try:
                self._accept_rows()
            except CorruptionError:
                raise  # the writer commits nothing any more
            except Exception as error:
                raise WriteFailed(f"nothing was stored: {error}") from error
        if self._inline:
            delta.puts += self._inline.items()
        return result

    def finish(self) -> Commit | None:
        """Return the writes of the group as one commit; None for a group without writes.

        Afterwards this object is a commit in flight, as the state merges it.
        """
        delta, state = self.delta, self.state
        if delta.next_id == state.next_id:
            changed = delta.changes or delta.puts or delta.drops or self._wrote
            if not changed and (self._draft is None or self._draft.is_blank):
                return None
        elif delta.next_id > state.id_limit:
            block = ids.next_block(state.next_id, delta.next_id - state.next_id)
            self.writer.put([(keys.ID_BLOCK_KEY, ids.encode_seq_block(block))])
            state.id_limit = block.end
        data = self.encoded = encode(delta)
        if not self._is_certain:
            state.check(delta.seq, data)
        row = keys.delta(delta.seq), data
        draft = self._draft
        return Commit((row,)) if draft is None or draft.is_blank else draft.finish(row)

    def _accept_rows(self) -> None:
        """Add the large rows and the drops of a successful operation to the group: first the drops."""
        rows = self._rows
        if rows:
            overlay = self.overlay
            for key in rows:
                if overlay.get(key) is not None:
                    self.drop(key)
        if self._drops:
            self._delete(self._drops)
        if rows:
            self.writer.put_held(rows)

    def _delete(self, drops: list[tuple[bytes, bytes]]) -> None:
        single = []
        for start, stop in drops:
            if stop == start + b"\x00":
                single.append(start)
            else:
                self.writer.delete_range(start, stop)
        if single:
            self.writer.delete(single)
        self.delta.puts = _outside(self.delta.puts, drops)
        self.delta.drops += drops

    def _undo(self, first_change: int) -> None:
        """Undo the changes of the failed operation; the earlier changes are of other operations."""
        changes = self.delta.changes
        undone = {key for key, _ in changes[first_change:]}
        del changes[first_change:]
        if not undone:
            return
        try:
            self.state.undo(undone, changes)
        except Exception as error:
            raise WriteFailed(
                f"an operation failed and could not be undone, so nothing was stored: {error}"
            ) from error


def _outside(rows: list[Row], ranges: list[tuple[bytes, bytes]]) -> list[Row]:
    """Return the rows outside of all ranges."""
    if not rows:
        return rows
    starts, stops = joined(ranges)
    outside = []
    for row in rows:
        at = bisect_right(starts, row[0])
        if not at or row[0] >= stops[at - 1]:
            outside.append(row)
    return outside
