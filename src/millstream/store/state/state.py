"""The state of a store in memory: the entities in use, the overlay, and where the deltas stand.

A state always equals the records plus the deltas up to `seq`. Changes happen under the lock of the
state: by the operations of the current group, or by deltas of other processes. An uncertain state is
repaired as a store is opened: forget everything, and load again.

A commit in flight is a pending layer. Changed rows wait in the delta of the commit. Its entities have
changed in `entities`, where the next operation continues, and `published` has their durable versions.
`land` merges the layer when the commit is durable, and `drop` removes the layer when the commit has
failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Set
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Raw

from millstream.clock import Clock, StoreTime
from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError
from millstream.format import ids, keys
from millstream.format.described import describe
from millstream.store.caches import Caches
from millstream.store.state import delta as deltas
from millstream.store.state.entity import Entity, Kinds
from millstream.store.state.overlay import Overlay
from millstream.store.state.published import CHANGES_MAX, PublishedEntities, Views
from millstream.store.state.unfolded import Unfolded

Joiner = Callable[[list[Row]], list[Row]]
"""Rewrites the rows that a fold writes into fewer rows, in any order; the fold knows no formats."""


_FIRST = itemgetter(0)


class Follower(Protocol):
    """A value that is derived from entities, and updated at every commit of any process."""

    def changed(self, changed: Set[bytes], /) -> Iterable[bytes]:
        """Handle changed entities; return further keys whose waiters must wake."""


class Pending(Protocol):
    """A commit in flight: operations have run, and the engine may not have made it durable yet."""

    delta: deltas.Delta[Any]
    encoded: bytes
    """The row of the delta."""


F = TypeVar("F", bound=Follower)
T = TypeVar("T")


class State:
    """Entities, overlay and counters, as of the delta `seq`."""

    def __init__(
        self,
        kinds: Kinds,
        clock: Clock,
        *,
        parts: Mapping[type, Any] | None = None,
        join_rows: Joiner = list,
    ) -> None:
        self._kinds = kinds
        self.computed = frozenset(c for kind in kinds.values() for c in kind.computed)
        """The types of changes that are certain to be readable once they are written."""
        self._viewed = frozenset(key for key, kind in kinds.items() if kind.view is not Entity.view)
        """The types of records whose entities have a view."""
        self._parts = parts or {}
        self.join_rows = join_rows
        self.clock = clock
        self.time = StoreTime(clock)
        self.overlay = Overlay()
        self.entities: dict[bytes, Entity] = {}
        """The entities in memory, with the changes of a commit in flight."""
        self.published = PublishedEntities(kinds)
        """The durable versions of changed entities."""
        self.pending: Pending | None = None
        """The commit in flight."""
        self.weight = 0
        """The sum of the weights of the entities in memory."""
        self._weight_kept = 0
        """The weight after the last eviction; 0 if a new eviction may gain something."""
        self.views = Views()
        """The views that readers use without a lock."""
        self.dirty = Unfolded()
        """Entities with changes that are not in their records yet."""
        self.damaged: set[bytes] = set()
        """Unfolded entities with an unreadable record; operations on them are refused."""
        self.reloaded = False
        """Whether changes were missed since the last `publish`, because another process folded them."""
        self.touched: set[bytes] = set()
        """Entities with durable changes after the last `publish`."""
        self._followers: dict[Callable[[State], Follower], Follower] = {}
        self.failures = 0
        """The number of failed commits of this process."""
        self.memory = Caches()
        """Data that rules keep about operations of this process, and that is not stored."""
        self.seq = 0
        self.folded = 0
        self.tail_bytes: dict[int, int] = {}
        self.tail_total = 0
        self.next_id = 0
        self.next_entity = 1
        self.id_limit = 0

    def hypothetical(self) -> State:
        """Return a state for operations that are never committed, valid while this state does not
        change.

        Entities are copied at their first use. Rows are shared, because operations do not change them.
        """
        state = State(self._kinds, self.clock, parts=self._parts)
        state.entities, state.overlay = _Copies(self._in_memory), self.overlay
        state.dirty, state.damaged, state.time = self.dirty, set(self.damaged), self.time
        state.seq, state.next_id, state.next_entity = self.seq, self.next_id, self.next_entity
        return state

    def load(self, snapshot: Snapshot) -> None:
        """Load the state from the records and the unfolded deltas."""
        self.forget()
        self.reloaded = True
        self.folded = self.seq = _folded(snapshot)
        if self.folded > self.views.seq:
            self.views.clear()  # deltas that were folded meanwhile can no longer update the views
        self.dirty.restart(self.folded)
        self.advance(snapshot)
        block = snapshot.get(keys.ID_BLOCK_KEY)
        if block is not None:
            reserved = ids.decode_seq_block(block)
            self.id_limit = reserved.end
            self.next_id = max(self.next_id, self.id_limit)

    def forget(self) -> None:
        """Drop everything before a `load`."""
        self.overlay.clear()
        self.entities.clear()
        self.published.clear()
        self.pending = None
        self.weight = self._weight_kept = 0
        self.dirty.restart(folded=0)
        self.damaged.clear()
        self._followers.clear()
        self.tail_bytes.clear()
        self.tail_total = 0
        self.id_limit = 0
        self.seq = self.folded = 0

    def advance(self, snapshot: Snapshot) -> bool:
        """Apply the deltas of other processes; return True if there were new deltas."""
        last = snapshot.last_seq()
        if last == self.seq:
            return False
        folded = deltas.fold_position(snapshot)
        if last < self.seq or folded > self.seq:
            if self.seq == self.folded:
                raise CorruptionError(
                    f"deltas after {self.seq} are missing", what="delta", where=self.seq + 1
                )
            self.load(snapshot)
            return True
        for delta, size in deltas.read(snapshot, self.seq, last):
            self._apply(delta, size, snapshot)
        self.folded_through(folded)
        return True

    def entity(self, key: bytes, snapshot: Snapshot) -> Entity:
        """Return the entity of a key, from memory or its record; raise if the record is damaged.

        Beside a commit in flight this is the durable version.
        """
        entity = self._in_memory(key)
        if entity is None:
            kind = self._kinds[key[1]]
            try:
                entity = kind.load(key, snapshot)
            except CorruptionError as error:
                message = f"{describe(key)} cannot be read: {error.message}"
                raise CorruptionError(message, **error.data) from error
            self.entities[key] = entity
            self.weight += kind.weight
            if key in self.damaged:
                entity = self._caught_up(key, snapshot)
        return entity

    def _in_memory(self, key: bytes) -> Entity | None:
        if self.pending is not None and key in self.published:
            return self.published[key]
        return self.entities.get(key)

    def _caught_up(self, key: bytes, snapshot: Snapshot) -> Entity:
        """Apply the skipped changes to an entity whose record can be read again, and return the
        entity."""
        self.damaged.remove(key)
        try:
            for delta, _ in deltas.read(snapshot, deltas.fold_position(snapshot), self.seq):
                for changed, raw in delta.changes:
                    if changed == key:
                        self._change(key, raw, delta.seq, snapshot)
            return self.entities[key]
        except BaseException:
            del self.entities[key]
            self.weight -= self._kinds[key[1]].weight
            self.damaged.add(key)
            raise

    def keep(self, key: bytes, snapshot: Snapshot) -> None:
        """Keep the durable version of an entity before operations change it."""
        self.published[key] = self.entity(key, snapshot).copied()

    def change(self, key: bytes, change: Any) -> None:
        """Apply a change to an entity in memory; None removes the entity."""
        entity = self.entities[key]
        if change is not None:
            entity.apply(change)
        else:
            self.entities[key] = self._kinds[key[1]].gone(entity.lsn)

    def find(self, start: bytes, stop: bytes, snapshot: Snapshot, *, limit: int) -> list[bytes]:
        """Return the keys of up to `limit` existing entities, in order."""
        unfolded = sorted(key for key in self.dirty if start <= key < stop)
        existing: list[bytes] = []
        at, more = 0, True
        while more and len(existing) < limit:
            rows = snapshot.scan(start, stop, limit=limit - len(existing))
            more = len(rows) == limit - len(existing)
            start = keys.successor(rows[-1][0]) if more else stop
            before, at = at, bisect_left(unfolded, start)
            page = sorted({key for key, _ in rows}.union(unfolded[before:at]))
            for key in page:
                if self.entity(key, snapshot).exists():
                    existing.append(key)
                    if len(existing) == limit:
                        break
        return existing

    def land(self, pending: Pending) -> None:
        """Merge the commit in flight, which is durable now."""
        delta = pending.delta
        self._merge(delta, len(pending.encoded))
        self.pending = None
        missing = self.published.missing
        missing += delta.changes
        if len(missing) > CHANGES_MAX:
            self.published.clear()

    def drop(self) -> None:
        """Drop the commit in flight, which has failed: changed entities become their durable
        versions."""
        if self.pending is None:
            return
        changes, self.pending = self.pending.delta.changes, None
        self.undo({key for key, _ in changes}, [])
        self.overlay.is_dropping = False
        self.id_limit = 0  # the commit may have reserved ids; the next commit reserves them again

    def undo(self, touched: set[bytes], kept: list[tuple[bytes, Any]]) -> None:
        """Undo the changes of a group to some entities, except for the changes of `kept`."""
        self.published.catch_up()
        for key in touched:
            self.entities[key] = self.published[key].copied()
        for key, change in kept:
            if key in touched:
                self.change(key, change)

    def _merge(self, delta: deltas.Delta[Any], size: int) -> None:
        """Note a durable delta whose changes are already applied to the entities."""
        seq = delta.seq
        if delta.drops:
            self.overlay.drop_all(delta.drops)
        if delta.puts:
            self.overlay.put(seq, delta.puts)
        self.touched.update(map(_FIRST, delta.changes))
        self.dirty.note(seq, delta.changes)
        self.seq = seq
        if delta.next_id > self.next_id:
            self.next_id = delta.next_id
        if delta.next_entity > self.next_entity:
            self.next_entity = delta.next_entity
        self.tail_bytes[seq] = size
        self.tail_total += size

    def check(self, seq: int, data: bytes) -> None:
        """Raise if a delta could not be decoded again, so that no unreadable delta is written."""
        for key, raw in deltas.decode(seq, data).changes:
            self._kinds[key[1]].decode_change(raw)

    def publish(self) -> set[bytes]:
        """Publish the views of a durable commit; return the keys whose waiters must wake."""
        changed, self.touched = self.touched, set()
        views, entities, viewed = self.views, self.entities, self._viewed
        for key in changed:
            if key[1] in viewed:
                entity = entities.get(key)
                if entity is not None and (view := entity.view()) is not None:
                    views[key] = view
        views.seq = self.seq
        self.overlay.is_dropping = False
        if self._followers:
            for follower in self._followers.values():
                changed = changed.union(follower.changed(changed))
        return changed

    def follower(self, make: Callable[[State], F]) -> F:
        """Return the follower that a function or class makes; it is made when first asked for.

        It is forgotten when the state may have missed changes. Only readers may ask it: an operation
        would show it entities that are not durable yet.
        """
        follower = self._followers.get(make)
        if follower is None:
            follower = self._followers[make] = make(self)
        return follower  # type: ignore[return-value]

    def part(self, kind: type[T]) -> T:
        """Return the value of a type that was handed to the store for the rules above it."""
        value: T = self._parts[kind]
        return value

    def show(self, key: bytes, entity: Entity) -> Any:
        """Publish the current view of an entity, and return the view."""
        view = entity.view()
        if view is not None:
            self.views[key] = view
        return view

    def folded_through(self, seq: int, written: Iterable[bytes] = ()) -> None:
        """Note that a fold of any process has moved the deltas up to `seq` into records.

        The records of the entities `written` include the changes of all later commits.
        """
        written = [key for key in written if self.dirty.written(key)]
        if seq <= self.folded:
            return
        self.overlay.prune(seq)
        self._weight_kept = 0
        clean = self.dirty.folded_through(seq)
        if self.damaged:  # an entity without unfolded deltas is judged by its record alone
            self.damaged.intersection_update(self.dirty)
        entities = self.entities
        settled = [
            key for key in (*written, *clean) if key in entities and entities[key].is_settled()
        ]
        self._let_go(settled)
        for gone in range(self.folded + 1, seq + 1):
            self.tail_total -= self.tail_bytes.pop(gone, 0)
        self.folded = seq

    def evict(self, count_max: int, weight_max: int = 2**63) -> None:
        """Drop folded entities from memory if there are too many, or if they are too heavy.

        Dropped entities are loaded again at their next use. If the unfolded entities alone exceed the
        limit, the next eviction waits for a fold, or until the weight has grown by an eighth.
        """
        if len(self.entities) <= count_max and self.weight <= weight_max:
            return
        if self._weight_kept and self.weight <= self._weight_kept + min(count_max, weight_max) // 8:
            return
        self._let_go(self.entities.keys() - self.dirty)
        self._weight_kept = self.weight

    def _let_go(self, clean: Iterable[bytes]) -> None:
        """Drop entities whose records are up to date, unless a commit in flight changes them."""
        if self.pending is None:
            self.published.clear()
        for key in clean:
            if key in self.published:
                continue
            del self.entities[key]
            self.weight -= self._kinds[key[1]].weight
            self.views.pop(key, None)

    def _apply(self, delta: deltas.StoredDelta, size: int, snapshot: Snapshot) -> None:
        for key, raw in delta.changes:
            self._change(key, raw, delta.seq, snapshot)
        self._merge(delta, size)
        self.time.restart(
            boot_id=delta.boot_id,
            boot_ms=delta.boot_ms,
            store_ms=delta.store_ms,
            wall_ms=delta.wall_ms,
        )

    def _change(self, key: bytes, raw: Raw, seq: int, snapshot: Snapshot) -> None:
        kind = self._kinds.get(keys.kind_of(key))
        if kind is None:
            raise CorruptionError(
                f"delta {seq} changes a record of unknown type {key[1]:#04x}; "
                "was it written by a newer version?",
                what="delta",
                where=seq,
            )
        if not self._can_change(key, snapshot):
            return
        if seq > self.entities[key].lsn:
            try:
                change = kind.decode_change(raw)
            except msgspec.MsgspecError as error:
                raise CorruptionError(
                    f"delta {seq}, record {key.hex()}: {error}", what="delta", where=seq
                ) from error
            self.change(key, change)
            if key in self.published:
                self.published.missing.append((key, change))

    def _can_change(self, key: bytes, snapshot: Snapshot) -> bool:
        """Load an entity that a delta changes; return False if its record is damaged."""
        if key in self.damaged:
            return False
        try:
            self.entity(key, snapshot)
        except CorruptionError:
            self.damaged.add(key)
            self.views.pop(key, None)
            return False
        return True


class _Copies(dict[bytes, Entity]):
    """Copies of the entities of another state, each made at its first use."""

    def __init__(self, find: Callable[[bytes], Entity | None]) -> None:
        super().__init__()
        self._find = find

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the copy of an entity, or the default."""
        copy = super().get(key)
        if copy is None:
            original = self._find(key)
            if original is None:
                return default
            copy = self[key] = original.copied()
        return copy


def _folded(snapshot: Snapshot) -> int:
    """Return the sequence of the last folded delta; raise if all deltas are missing."""
    folded = deltas.fold_position(snapshot)
    if snapshot.last_seq() == 0 and (folded or snapshot.get(keys.ID_BLOCK_KEY) is not None):
        raise CorruptionError("every delta is missing", what="delta", where=folded + 1)
    return folded
