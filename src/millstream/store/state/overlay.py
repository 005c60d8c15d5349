"""The overlay: small rows of deltas that are durable, and not yet folded into their base tables.

Reads check the overlay before the engine. Keys longer than ten bytes are grouped by their first ten
bytes (a type and a log) and sorted within the group, so that log entries can be read in order.

Readers use no lock while one writer changes the overlay: the list of a group only grows at its end, or
is replaced by a new list. A row that is missing here was folded, and the engine has it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable

from millstream.engine.commit import Row

GROUP_BYTES = 10


class Overlay:
    """Rows by key, with the sequence of the delta that carries each."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, bytes]] = {}
        self._groups: dict[bytes, list[bytes]] = {}
        self._arrivals: deque[tuple[int, bytes]] = deque()
        self.is_dropping = False
        """Whether a commit in flight drops rows, or a commit that is being merged replaces rows.

        Until its views are published, a reader without a lock may miss a row, or read a later value."""
        self.losses = 0
        """Counts the times that rows were replaced or dropped; rows read before may be out of date."""
        self._drops = 0

    def __len__(self) -> int:
        return len(self._rows)

    def mark(self) -> int:
        """Return a mark for a read without a lock, to be checked by `is_since`."""
        return -1 if self.is_dropping else self._drops

    def is_since(self, mark: int) -> bool:
        """Return whether no row was dropped or replaced after a mark."""
        return self._drops == mark and not self.is_dropping

    def put(self, seq: int, rows: Iterable[Row]) -> None:
        """Add the rows of the delta `seq`."""
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
        """Return the value of a key in the overlay, or None."""
        row = self._rows.get(key)
        return None if row is None else row[1]

    def after(self, key: bytes) -> Row | None:
        """Return the row with the least key >= `key` in its group."""
        group = self._groups.get(key[:GROUP_BYTES])
        if not group:
            return None
        at = bisect_left(group, key)
        if at == len(group):
            return None
        row = self._rows.get(group[at])
        return None if row is None else (group[at], row[1])

    def rows_from(self, key: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with keys >= `key` in its group."""
        group = self._groups.get(key[:GROUP_BYTES])
        if not group:
            return []
        at = bisect_left(group, key)
        rows = self._rows
        named_rows = [(name, rows.get(name)) for name in group[at : at + limit]]
        return [(name, row[1]) for name, row in named_rows if row is not None]

    def keys(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys of a range, in order; keys of up to ten bytes are not included."""
        first, last = start[:GROUP_BYTES], stop[:GROUP_BYTES]
        if first == last:
            names = [first]
        else:
            names = sorted(name for name in list(self._groups) if first <= name <= last)
        held_keys: list[bytes] = []
        for name in names:
            group = self._groups.get(name, [])
            held_keys += group[bisect_left(group, start) : bisect_left(group, stop)]
        return held_keys

    def drop_all(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """Drop the rows of ranges; many single keys cost little more than a single key."""
        self._drops += 1
        self.is_dropping = True
        dropped: list[bytes] = []
        for start, stop in ranges:
            if stop == start + b"\x00":
                if start in self._rows:
                    dropped.append(start)
            else:
                dropped += self.keys(start, stop)
        self.losses += bool(dropped)
        self._forget(dropped)

    def oldest(self, through_seq: int) -> list[Row]:
        """Return the rows of deltas up to `through_seq`, in the order of their arrival."""
        rows = []
        for seq, key in self._arrivals:
            if seq > through_seq:
                break
            row = self._rows.get(key)
            if row is not None and row[0] == seq:
                rows.append((key, row[1]))
        return rows

    def prune(self, through_seq: int) -> None:
        """Drop the rows of deltas up to `through_seq`, which were folded."""
        arrivals = self._arrivals
        gone = []
        while arrivals and arrivals[0][0] <= through_seq:
            seq, key = arrivals.popleft()
            row = self._rows.get(key)
            if row is not None and row[0] == seq:
                gone.append(key)
        self._forget(gone)

    def clear(self) -> None:
        """Drop all rows."""
        self.losses += 1
        self._drops += 1
        self.is_dropping = False
        self._rows.clear()
        self._groups.clear()
        self._arrivals.clear()

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Drop keys; each affected group gets a new list, for readers without a lock."""
        held = self._rows
        gone: dict[bytes, list[bytes]] = {}
        for key in keys:
            if held.pop(key, None) is not None and len(key) > GROUP_BYTES:
                gone.setdefault(key[:GROUP_BYTES], []).append(key)
        for name, group_keys in gone.items():
            group = self._groups[name]
            if len(group_keys) == len(group):
                del self._groups[name]
            elif len(group_keys) == 1:
                at = bisect_left(group, group_keys[0])
                self._groups[name] = group[:at] + group[at + 1 :]
            else:
                self._groups[name] = [key for key in group if key in held]


class PendingRows:
    """The overlay with the rows of the current group over it, for the operations of this group.

    `is_dropped` tells whether the group drops the stored row of a key.
    """

    def __init__(self, overlay: Overlay, is_dropped: Callable[[bytes], bool]) -> None:
        self._overlay = overlay
        self._is_dropped = is_dropped
        self._rows: list[Row] = []
        self._count = 0
        """The number of rows that are in `_puts`."""
        self._puts: dict[bytes, bytes] = {}
        self._sorted_puts: Overlay | None = None

    def set(self, rows: list[Row]) -> None:
        """Set the rows of the group; the same list may have grown since the last call."""
        if rows is not self._rows:
            self._rows, self._count, self._puts, self._sorted_puts = rows, 0, {}, None
        if self._count < len(rows):
            self._puts.update(rows[self._count :])
            self._count, self._sorted_puts = len(rows), None

    def mark(self) -> int:
        """Return a mark for `is_since`."""
        return self._overlay.mark()

    def is_since(self, mark: int) -> bool:
        """Return whether no row was dropped or replaced after a mark."""
        return self._overlay.is_since(mark)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        value = self._puts.get(key)
        if value is None and not self._is_dropped(key):
            value = self._overlay.get(key)
        return value

    def after(self, key: bytes) -> Row | None:
        """Return the row with the least key >= `key` in its group."""
        rows = self.rows_from(key, limit=1)
        return rows[0] if rows else None

    def rows_from(self, key: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with keys >= `key` in its group."""
        put = self._sorted().rows_from(key, limit=limit)
        kept: list[Row] = []
        while len(kept) < limit and (page := self._overlay.rows_from(key, limit=limit)):
            kept += [row for row in page if not self._is_dropped(row[0])]
            key = page[-1][0] + b"\x00"
        return sorted((dict(kept) | dict(put)).items())[:limit]

    def keys(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys of a range, in order; keys of up to ten bytes are not included."""
        held = self._overlay.keys(start, stop)
        kept = [key for key in held if not self._is_dropped(key)]
        put = self._sorted().keys(start, stop)
        return sorted({*kept, *put}) if put else kept

    def _sorted(self) -> Overlay:
        if self._sorted_puts is None:
            self._sorted_puts = Overlay()
            self._sorted_puts.put(0, self._puts.items())
        return self._sorted_puts
