"""The overlay: small rows that are durable in a delta and not yet moved to their own place.

It lies over the engine: what it holds is what a read finds. Keys longer than ten bytes are grouped
by their first ten (a type and a log), and sorted within the group, so that log entries can be
sought in order.

Readers look without a lock while one writer changes it: a group's list only grows at its end, or
is replaced whole. A row that a reader just misses has been folded: the engine has it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from millstream.engine.commit import Row

GROUP_BYTES = 10


class Overlay:
    """Rows by key, with the sequence of the delta that carries each."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, bytes]] = {}
        self._groups: dict[bytes, list[bytes]] = {}
        self._arrivals: deque[tuple[int, bytes]] = deque()
        self.is_dropping = False
        """Whether the commit in flight drops or replaces rows: until it is durable, a reader without
        a lock may miss a row, or find one that is not durable in its place."""
        self.losses = 0
        """How often held rows were replaced or dropped: what was read before may be out of date."""
        self._drops = 0

    def __len__(self) -> int:
        return len(self._rows)

    def copied(self) -> Overlay:
        """One with the same rows, to be changed by itself; it is never folded."""
        copy = Overlay()
        copy._rows = dict(self._rows)
        copy._groups = {name: list(group) for name, group in self._groups.items()}
        return copy

    def mark(self) -> int:
        """What a reader without a lock takes before it looks; see `is_since`."""
        return -1 if self.is_dropping else self._drops

    def is_since(self, mark: int) -> bool:
        """Whether no row, held here or not, was dropped or replaced since a mark was taken."""
        return self._drops == mark and not self.is_dropping

    def put(self, seq: int, rows: Iterable[Row]) -> None:
        """Hold rows that the delta `seq` carries."""
        held, groups, arrivals = self._rows, self._groups, self._arrivals
        for key, value in rows:
            if key in held:
                self.losses += 1
                self._drops += 1
                self.is_dropping = True
            elif len(key) > GROUP_BYTES:
                group = groups.get(key[:GROUP_BYTES])
                if group is None:
                    groups[key[:GROUP_BYTES]] = [key]
                elif key > group[-1]:
                    group.append(key)
                else:
                    insort(group, key)
            held[key] = (seq, value)
            arrivals.append((seq, key))

    def get(self, key: bytes) -> bytes | None:
        """The value of a key that is held here."""
        found = self._rows.get(key)
        return None if found is None else found[1]

    def after(self, key: bytes) -> Row | None:
        """The row with the least key at or above this one, within its group."""
        group = self._groups.get(key[:GROUP_BYTES])
        if not group:
            return None
        at = bisect_left(group, key)
        if at == len(group):
            return None
        found = self._rows.get(group[at])
        return None if found is None else (group[at], found[1])

    def some(self, key: bytes, *, limit: int) -> list[Row]:
        """Up to `limit` rows from this key on, within its group."""
        group = self._groups.get(key[:GROUP_BYTES])
        if not group:
            return []
        at = bisect_left(group, key)
        rows = self._rows
        found = [(name, rows.get(name)) for name in group[at : at + limit]]
        return [(name, row[1]) for name, row in found if row is not None]

    def keys(self, start: bytes, stop: bytes) -> list[bytes]:
        """The held keys in a range, in order; keys of ten bytes are never part of one."""
        first, last = start[:GROUP_BYTES], stop[:GROUP_BYTES]
        if first == last:
            names = [first]
        else:
            names = sorted(name for name in list(self._groups) if first <= name <= last)
        found: list[bytes] = []
        for name in names:
            group = self._groups.get(name, [])
            found += group[bisect_left(group, start) : bisect_left(group, stop)]
        return found

    def drop_all(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """Forget the rows in ranges; many single keys at once cost little more than one."""
        self._drops += 1
        self.is_dropping = True
        found: list[bytes] = []
        for start, stop in ranges:
            if stop == start + b"\x00":
                if start in self._rows:
                    found.append(start)
            else:
                found += self.keys(start, stop)
        self.losses += bool(found)
        self._forget(found)

    def oldest(self, through_seq: int) -> list[Row]:
        """The rows that deltas up to `through_seq` carry, in the order of their arrival."""
        found = []
        for seq, key in self._arrivals:
            if seq > through_seq:
                break
            row = self._rows.get(key)
            if row is not None and row[0] == seq:
                found.append((key, row[1]))
        return found

    def prune(self, through_seq: int) -> None:
        """Let go of what a fold has moved to base tables."""
        arrivals = self._arrivals
        gone = []
        while arrivals and arrivals[0][0] <= through_seq:
            seq, key = arrivals.popleft()
            row = self._rows.get(key)
            if row is not None and row[0] == seq:
                gone.append(key)
        self._forget(gone)

    def clear(self) -> None:
        """Forget everything."""
        self.losses += 1
        self._drops += 1
        self.is_dropping = False
        self._rows.clear()
        self._groups.clear()
        self._arrivals.clear()

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Let go of keys; of each group that they leave, one new list is made."""
        held = self._rows
        gone: dict[bytes, list[bytes]] = {}
        for key in keys:
            if held.pop(key, None) is not None and len(key) > GROUP_BYTES:
                gone.setdefault(key[:GROUP_BYTES], []).append(key)
        for name, some in gone.items():
            group = self._groups[name]
            if len(some) == len(group):
                del self._groups[name]
            elif len(some) == 1:
                at = bisect_left(group, some[0])
                self._groups[name] = group[:at] + group[at + 1 :]
            else:
                self._groups[name] = [key for key in group if key in held]
