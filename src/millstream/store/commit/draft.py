"""A draft: the writes of the current commit, over the stored rows.

Each operation of a group reads the writes of the operations before it, although the engine has not
received them yet. The engine receives all writes together, as one `Commit`.
"""

from __future__ import annotations

import errno
import tempfile
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millstream.engine.commit import (
    MEMORY_BYTES_MAX,
    SPOOLED_BYTES_MIN,
    Commit,
    Row,
    Spool,
    SpooledRows,
    Value,
    loaded,
)
from millstream.engine.disk import full
from millstream.engine.protocol import Snapshot
from millstream.errors import WriteFailed

PAGE_ROWS = 256
"""The number of stored rows read in one step while dropped rows are skipped."""

FEW = 32
"""Up to this number of keys, a sorted list is changed key by key instead of sorted again."""

_NO_KEYS: list[bytes] = []
_NO_RANGES: list[tuple[bytes, bytes]] = []


class Draft:
    """A snapshot with the writes of one commit over it, for a single thread."""

    # Most commits put one row. Class attributes stand in for the collections of larger commits.
    is_blank = True
    """Whether the draft has no writes."""
    _deleted: set[bytes] | None = None
    _ranges: list[tuple[bytes, bytes]] = _NO_RANGES
    _starts: list[bytes] = _NO_KEYS
    _stops: list[bytes] = _NO_KEYS
    """The stops of the dropped ranges, sorted and joined; `_starts` has their starts."""
    _order: list[bytes] = _NO_KEYS
    _fresh: list[bytes] = _NO_KEYS
    """Keys that were put after `_order` was sorted."""
    _skips: dict[bytes, bytes] | None = None
    """The start of a scan → the key up to which every stored row is dropped."""
    _held_bytes = 0
    _spool: Spool | None = None

    def __init__(self, stored: Snapshot, folder: Path | None = None) -> None:
        self.stored = stored
        self._folder = folder
        self._values: dict[bytes, Value] = {}

    # Reading.

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        if self.is_blank:
            return self.stored.get(key)
        value = self._values.get(key)
        if value is not None:
            return loaded(value)
        return None if self.is_dropped(key) else self.stored.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with start <= key < stop, in key order."""
        if self.is_blank:
            return self.stored.scan(start, stop, limit=limit)
        rows = self._surviving(start, stop, limit=limit)
        put_keys = self._own_keys(start, stop)
        if not put_keys:
            return rows
        values = dict(rows)
        values.update((key, loaded(self._values[key])) for key in put_keys[:limit])
        return sorted(values.items())[:limit]

    def last_seq(self) -> int:
        """Return the sequence of the newest stored delta."""
        return self.stored.last_seq()

    # Writing.

    def hold(self, value: bytes) -> Value:
        """Return a value to keep until the commit; a large commit keeps its values in a temporary file."""
        self._held_bytes += len(value)
        if self._held_bytes <= MEMORY_BYTES_MAX or len(value) < SPOOLED_BYTES_MIN:
            return value
        try:
            if self._spool is None:
                self._spool = Spool(self._folder)
            return self._spool.add(value)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise full(self._folder or Path(tempfile.gettempdir()), str(error)) from error
            raise WriteFailed(
                f"a large commit could not be spooled, so nothing was stored: {error}"
            ) from error

    def put(self, rows: Iterable[Row]) -> None:
        """Put rows; existing keys are overwritten."""
        values = dict(rows)
        size = sum(map(len, values.values()))
        if self._held_bytes + size <= MEMORY_BYTES_MAX:
            self._held_bytes += size
            self.put_held(values)  # type: ignore[arg-type]  # nothing is spooled
        else:
            self.put_held({key: self.hold(value) for key, value in values.items()})

    def put_held(self, rows: dict[bytes, Value]) -> None:
        """Put rows whose values are held already."""
        if rows:
            fresh = [key for key in rows if key not in self._values]
            if self._fresh:
                self._fresh += fresh
            else:
                self._fresh = fresh
            self._values.update(rows)
            self.is_blank = False

    def delete(self, keys: Iterable[bytes]) -> None:
        """Delete rows; a missing key is no error."""
        deleted = list(keys)
        if deleted:
            self._forget(key for key in deleted if key in self._values)
            if self._deleted is None:
                self._deleted = set()
            self._deleted.update(deleted)
            self.is_blank = False

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete every row with start <= key < stop."""
        self._forget(self._own_keys(start, stop))
        self._ranges = [*self._ranges, (start, stop)]
        self._starts, self._stops = joined(self._ranges)
        self.is_blank = False

    def finish(self, last: Row | None = None) -> Commit:
        """Return the writes, and the row `last`, as one commit; the draft must not be used afterwards."""
        values = self._values
        if last is not None:
            values[last[0]] = last[1]
        rows: Any = values.items() if self._spool is None else SpooledRows(values)
        return Commit(rows, sorted(self._deleted or ()), self._ranges)

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Remove rows that the draft puts."""
        gone = set(keys)
        if not gone:
            return
        order = self._sorted()
        for key in gone:
            del self._values[key]
        if len(gone) < FEW:
            for key in gone:
                del order[bisect_left(order, key)]
        else:
            self._order = [key for key in order if key in self._values]

    def is_dropped(self, key: bytes) -> bool:
        """Return whether the draft deletes the stored row of a key."""
        if self._deleted is not None and key in self._deleted:
            return True
        at = bisect_right(self._starts, key)
        return at > 0 and key < self._stops[at - 1]

    def _own_keys(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys with start <= key < stop that the draft puts, in order."""
        order = self._sorted()
        return order[bisect_left(order, start) : bisect_left(order, stop)]

    def _sorted(self) -> list[bytes]:
        """Return the keys of the draft's puts, in order."""
        if self._fresh:
            if self._order and len(self._fresh) < FEW:
                for key in self._fresh:
                    insort(self._order, key)
            else:
                self._order = sorted(self._values)
            self._fresh = []
        return self._order

    def _surviving(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` stored rows that the draft does not drop; the draft may replace rows of these."""
        if self._deleted is None and not self._ranges:
            return self.stored.scan(start, stop, limit=limit)
        surviving: list[Row] = []
        begin, ask = self._beyond(self._skip(start)), limit
        while len(surviving) < limit and begin < stop:
            rows = self.stored.scan(begin, stop, limit=ask)
            surviving += [row for row in rows if not self.is_dropped(row[0])]
            if len(rows) < ask:
                break
            begin, ask = self._beyond(rows[-1][0] + b"\x00"), PAGE_ROWS
            if not surviving:
                self._skips = self._skips or {}
                self._skips[start] = begin
        return surviving[:limit]

    def _skip(self, start: bytes) -> bytes:
        return start if self._skips is None else self._skips.get(start, start)

    def _beyond(self, key: bytes) -> bytes:
        """Return the first key at or after `key` outside of the dropped ranges."""
        at = bisect_right(self._starts, key)
        return max(key, self._stops[at - 1]) if at else key


def joined(ranges: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    """Return the starts and the stops of ranges, sorted; touching ranges are joined."""
    starts: list[bytes] = []
    stops: list[bytes] = []
    for start, stop in sorted(ranges):
        if stops and start <= stops[-1]:
            stops[-1] = max(stops[-1], stop)
        else:
            starts.append(start)
            stops.append(stop)
    return starts, stops
