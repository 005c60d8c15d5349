"""The state of a store in memory: the entities in use, the overlay, and where the deltas stand.

It always equals the records plus the deltas up to `seq`. It is changed only under its lock: by the
operations of the group that is being committed, or by deltas that other processes have written.
Anything uncertain is mended by the same road that opening takes: forget, reload.
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
from millstream.format.encodings import U64, Reader
from millstream.store.caches import Caches
from millstream.store.state import delta as deltas
from millstream.store.state.entity import Entity, Kinds
from millstream.store.state.overlay import Overlay
from millstream.store.state.published import Views
from millstream.store.state.unfolded import Unfolded

Joiner = Callable[[list[Row]], list[Row]]
"""Rewrites the rows that a fold writes into fewer rows, in any order; the fold knows no formats."""


_SECOND = itemgetter(1)


class Follower(Protocol):
    """Something that is kept up to date with every commit, here or elsewhere."""

    def changed(self, changed: Set[bytes], /) -> Iterable[bytes]:
        """Entities have changed; answers others whose watchers are to be woken as well."""


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
        views: Views | None = None,
    ) -> None:
        self._kinds = kinds
        self._computed = frozenset(c for kind in kinds.values() for c in kind.computed) | {bytes}
        """The types of changes, and of rows, that are certain to be readable once they are written."""
        self._parts = parts or {}
        self.join_rows = join_rows
        self.clock = clock
        self.time = StoreTime(clock)
        self.overlay = Overlay()
        self.entities: dict[bytes, Entity] = {}
        self.weight = 0
        """Of all entities in memory together."""
        self._weight_kept = 0
        """What it was after the last eviction, until there may be more to evict."""
        self.views = Views() if views is None else views
        """What readers see, without a lock, of entities."""
        self.dirty = Unfolded()
        """Entities with changes that no record holds yet."""
        self.damaged: set[bytes] = set()
        """Of these, those whose record could not be read: what they were asked was refused."""
        self.settled: list[bytes] = []
        """Entities that the slice which is being written lets go of, once it is folded."""
        self.reloaded = False
        """Whether changes may have been missed since the last `publish`: a fold had passed us."""
        self.touched: set[bytes] = set()
        """Entities changed since the last `publish`."""
        self._followers: dict[Callable[[State], Follower], Follower] = {}
        self.failures = 0
        """Commits of this process that have failed."""
        self.memory = Caches()
        """What rules remember of operations that ran in this process; no row holds it."""
        self.seq = 0
        self.folded = 0
        self.tail_bytes: dict[int, int] = {}
        self.tail_total = 0
        self.next_id = 0
        self.next_entity = 1
        self.id_limit = 0

    def copied(self) -> State:
        """A state that can be changed without changing this one, while this one stays as it is.

        Entities are copied when they are first used.
        """
        copy = State(self._kinds, self.clock, parts=self._parts)
        copy.entities, copy.overlay = _Copies(self.entities), self.overlay.copied()
        copy.dirty, copy.damaged, copy.time = self.dirty, set(self.damaged), self.time
        copy.seq, copy.folded = self.seq, self.folded
        copy.next_id, copy.next_entity, copy.id_limit = (
            self.next_id,
            self.next_entity,
            self.id_limit,
        )
        return copy

    def load(self, snapshot: Snapshot) -> None:
        """Start over from the records and the deltas after them."""
        self.forget()
        self.reloaded = True
        self.folded = self.seq = _folded(snapshot)
        if self.folded > self.views.seq:
            self.views.clear()  # of what was folded since they were shown, no delta is left
        self.dirty.clear(self.folded)
        self.advance(snapshot)
        block = snapshot.get(keys.ID_BLOCK_KEY)
        if block is not None:
            reserved = ids.decode_seq_block(block)
            self.id_limit = reserved.end
            self.next_id = max(self.next_id, self.id_limit)

    def forget(self) -> None:
        """Drop everything; `load` must follow."""
        self.overlay.clear()
        self.entities.clear()
        self.weight = self._weight_kept = 0
        self.dirty.clear(folded=0)
        self.damaged.clear()
        self._followers.clear()
        self.settled.clear()
        self.tail_bytes.clear()
        self.tail_total = 0
        self.id_limit = 0
        self.seq = self.folded = 0

    def advance(self, snapshot: Snapshot) -> bool:
        """Apply what others have committed; True if there was any."""
        last = snapshot.last_seq()
        if last == self.seq:
            return False
        first = snapshot.first_seq()
        if last < self.seq or first > self.seq + 1:
            if self.seq == self.folded:
                raise CorruptionError(
                    f"deltas after {self.seq} are missing", what="delta", where=self.seq + 1
                )
            self.load(snapshot)
            return True
        for found, size in deltas.read(snapshot, self.seq, last):
            self._apply(found, size, snapshot)
        self.folded_through(first - 1)
        return True

    def entity(self, key: bytes, snapshot: Snapshot) -> Entity:
        """The entity of a key, loaded if need be; `CorruptionError` if its record is damaged."""
        found = self.entities.get(key)
        if found is None:
            kind = self._kinds[key[1]]
            try:
                found = kind.load(key, snapshot)
            except CorruptionError as error:
                message = f"{describe(key)} cannot be read: {error.message}"
                raise CorruptionError(message, **error.data) from error
            self.entities[key] = found
            self.weight += kind.weight
            if key in self.damaged:
                found = self._caught_up(key, snapshot)
        return found

    def _caught_up(self, key: bytes, snapshot: Snapshot) -> Entity:
        """An entity whose record was read wrongly, once: with the changes that were passed over."""
        self.damaged.remove(key)
        try:
            for found, _ in deltas.read(snapshot, snapshot.first_seq() - 1, self.seq):
                for changed, raw in found.changes:
                    if changed == key:
                        self._change(key, raw, found.seq, snapshot)
            return self.entities[key]
        except BaseException:
            del self.entities[key]
            self.weight -= self._kinds[key[1]].weight
            self.damaged.add(key)
            raise

    def change(self, key: bytes, change: Any, snapshot: Snapshot) -> None:
        """Move an entity; None removes it."""
        entity = self.entities.get(key)
        if entity is None:
            entity = self.entity(key, snapshot)
        if change is not None:
            entity.apply(change)
        else:
            self.entities[key] = self._kinds[key[1]].gone(entity.lsn)

    def find(self, start: bytes, stop: bytes, snapshot: Snapshot, *, limit: int) -> list[bytes]:
        """The keys of up to `limit` entities that exist, in order."""
        unfolded = sorted(key for key in self.dirty if start <= key < stop)
        found: list[bytes] = []
        at, more = 0, True
        while more and len(found) < limit:
            rows = snapshot.scan(start, stop, limit=limit - len(found))
            more = len(rows) == limit - len(found)
            start = rows[-1][0] + b"\x00" if more else stop
            before, at = at, bisect_left(unfolded, start)
            some = sorted({key for key, _ in rows}.union(unfolded[before:at]))
            for key in some:
                if self.entity(key, snapshot).exists():
                    found.append(key)
                    if len(found) == limit:
                        break
        return found

    def committed(self, delta: deltas.Delta[Any], size: int) -> None:
        """Note a delta that is durable; its changes are applied already."""
        seq = delta.seq
        self.overlay.is_dropping = False
        self.dirty.note(seq, delta.changes)
        self.seq = seq
        if delta.next_id > self.next_id:
            self.next_id = delta.next_id
        if delta.next_entity > self.next_entity:
            self.next_entity = delta.next_entity
        self.tail_bytes[seq] = size
        self.tail_total += size

    def rebuild(self, touched: set[bytes], snapshot: Snapshot, pending: deltas.Delta[Any]) -> None:
        """Undo a failed operation: bring back entities from records, deltas and the open group."""
        folded = snapshot.first_seq() - 1
        self.folded_through(folded)  # by others, perhaps: of what they wrote no delta is left
        for key in touched:
            if self.entities.pop(key, None) is not None:
                self.weight -= self._kinds[key[1]].weight
        for found, _ in deltas.read(snapshot, folded, self.seq):
            for key, raw in found.changes:
                if key in touched:
                    self._change(key, raw, found.seq, snapshot)
        for key, change in pending.changes:
            if key in touched:
                self.change(key, change, snapshot)

    def check(self, delta: deltas.Delta[Any], data: bytes) -> None:
        """Refuse a delta that could not be read again: nothing that is written may be unreadable."""
        found = {*map(type, map(_SECOND, delta.changes)), *map(type, map(_SECOND, delta.puts))}
        if found <= self._computed:
            return
        for key, raw in deltas.decode(delta.seq, data).changes:
            self._kinds[key[1]].decode_change(raw)

    def publish(self) -> set[bytes]:
        """Once a commit is durable: let readers see what it changed; answers which watchers to wake."""
        changed, self.touched = self.touched, set()
        self.views.replace(changed, self.entities, self.seq)
        if self._followers:
            for follower in self._followers.values():
                changed = changed.union(follower.changed(changed))
        return changed

    @property
    def has_followers(self) -> bool:
        """Whether something is derived from the entities."""
        return bool(self._followers)

    def follower(self, make: Callable[[State], F]) -> F:
        """Return the follower that a function or class makes; it is made when first asked for.

        It is forgotten when the state may have missed changes.
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
        """Let readers see an entity as it is now; answers what they see."""
        view = entity.view()
        if view is not None:
            self.views.add(key, view, seq=self.seq)
        return view

    def folded_through(self, seq: int) -> None:
        """A fold, here or elsewhere, has moved every delta up to `seq` into records."""
        if seq <= self.folded:
            return
        self.overlay.prune(seq)
        self._weight_kept = 0
        clean = self.dirty.folded_through(seq)
        if self.damaged:  # where no delta names one any more, its record alone says how it stands
            self.damaged.intersection_update(self.dirty)
        # What another state folded (the standby, another process) is settled here as well.
        entities = self.entities
        self._let_go(
            [
                *self.settled,
                *(key for key in clean if key in entities and entities[key].is_settled()),
            ]
        )
        self.settled = []
        for gone in range(self.folded + 1, seq + 1):
            self.tail_total -= self.tail_bytes.pop(gone, 0)
        self.folded = seq

    def evict(self, keep: int, weight_max: int = 2**63) -> None:
        """Past so many entities, or so much weight, let go of the clean ones.

        They are read again when needed. If what is dirty is too much already, nothing is gained by
        looking before something is folded, or a good part more is loaded.
        """
        if len(self.entities) <= keep and self.weight <= weight_max:
            return
        if self._weight_kept and self.weight <= self._weight_kept + min(keep, weight_max) // 8:
            return
        self._let_go(self.entities.keys() - self.dirty)
        self._weight_kept = self.weight

    def _let_go(self, found: Iterable[bytes]) -> None:
        """Drop entities whose records hold everything."""
        for key in found:
            del self.entities[key]
            self.weight -= self._kinds[key[1]].weight
            self.views.remove(key)

    def _apply(self, found: deltas.StoredDelta, size: int, snapshot: Snapshot) -> None:
        for key, raw in found.changes:
            self._change(key, raw, found.seq, snapshot)
            self.touched.add(key)
        if found.drops:
            self.overlay.drop_all(found.drops)
        self.overlay.put(found.seq, found.puts)
        self.committed(found, size)
        self.time.restart(
            boot_id=found.boot_id,
            boot_ms=found.boot_ms,
            store_ms=found.store_ms,
            wall_ms=found.wall_ms,
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
            self.change(key, change, snapshot)

    def _can_change(self, key: bytes, snapshot: Snapshot) -> bool:
        """Load an entity that a delta changes; False if its record is damaged: others go on."""
        if key in self.damaged:
            return False
        try:
            self.entity(key, snapshot)
        except CorruptionError:
            self.damaged.add(key)
            self.views.remove(key)
            return False
        return True


class _Copies(dict[bytes, Entity]):
    """Copies of another state's entities, each made when it is first asked for."""

    def __init__(self, originals: dict[bytes, Entity]) -> None:
        super().__init__()
        self._originals = originals

    def get(self, key: bytes, default: Any = None) -> Any:
        """The copy, or what was put in its place."""
        found = super().get(key)
        if found is None:
            original = self._originals.get(key)
            if original is None:
                return default
            found = self[key] = original.copied()
        return found


def _folded(snapshot: Snapshot) -> int:
    """The last delta that the fold has taken; an emptied store is damage, not a new one."""
    data = snapshot.get(keys.FOLD_KEY)
    folded = 0
    if data is not None:
        reader = Reader(data, "fold position")
        folded = reader.number(U64)
        reader.finish()
    if snapshot.last_seq() == 0 and (folded or snapshot.get(keys.ID_BLOCK_KEY) is not None):
        raise CorruptionError("every delta is missing", what="delta", where=folded + 1)
    return folded
