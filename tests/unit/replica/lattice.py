"""The lattice of log states: what copies of a log converge to, as values and one pure function.

A model to compare with: a sync of stores must end where `merge` of their states does. A state never
changes; `appended`, `truncated` and `with_metadata` give the next one.

`merge` makes one state that has what either has:

    start      the greater: what was truncated stays so
    timestamp  the greater
    metadata   of each key the entry that counts (`stamp`)
    entries    both trimmed to the start, then the longer

For copies of one log this is a join: the order in which copies meet changes nothing, and meeting
twice neither. No offset ever changes its meaning: copies that hold different entries at the same
offset are a fork, and refused, unless the longer is asked for. Of two forks that are equally long
then the same is chosen by both sides, so that this is a join as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import ForkDetected, InvalidInput
from millstream.format.packing import check_json, check_timestamp
from millstream.header import NO_HEADERS, HeaderMapping
from millstream.log.model.metadata import Meta, Stamp
from millstream.log.model.names import check_integer
from millstream.replica.metadata import Entries, check_entries, join

OnFork = Literal["refuse", "longest"]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Entry(Struct, frozen=True, gc=False):
    """One record, wherever it lies."""

    value: bytes
    key: bytes | None = None
    timestamp: int = 0
    headers: HeaderMapping = NO_HEADERS

    def __post_init__(self) -> None:
        """Refuse what a log cannot hold."""
        if type(self.value) is not bytes or not isinstance(self.key, bytes | None):
            raise InvalidInput("an entry's value is bytes, its key bytes or nothing")
        check_timestamp(self.timestamp)
        if not isinstance(self.headers, Mapping):
            raise InvalidInput(f"headers are a mapping, not {type(self.headers).__name__}")

    def packed(self) -> bytes:
        """Its bytes, the same for the same entry: what ties are broken by."""
        return _encode((self.key, self.value, self.timestamp, dict(self.headers)))


Run = tuple[Entry, ...]
"""Entries in a row."""


class LogState(Struct, frozen=True):
    """One copy of a log: `entries[i]` is at the offset `start + i`. The empty one is the least."""

    entries: Run = ()
    metadata: Entries = {}
    timestamp: int = 0
    """Of the last change, in ms."""
    start: int = 0

    def __post_init__(self) -> None:
        """Refuse a state that cannot be."""
        entries: Any = self.entries
        if type(entries) is not tuple or not all(isinstance(one, Entry) for one in entries):
            raise InvalidInput("the entries of a state are a tuple: LogState((Entry(...), ...))")
        check_entries(self.metadata)
        check_timestamp(self.timestamp)
        check_integer("a start", self.start)
        check_integer("an end", self.start + len(self.entries))

    @property
    def end(self) -> int:
        """The offset that the next entry gets."""
        return self.start + len(self.entries)

    def __getitem__(self, offset: int) -> Entry:
        """The entry at an offset."""
        if not self.start <= offset < self.end:
            raise IndexError(offset)
        return self.entries[offset - self.start]

    def appended(self, *entries: Entry, timestamp: int = 0) -> LogState:
        """With more entries at the end."""
        latest = max([self.timestamp, timestamp, *(entry.timestamp for entry in entries)])
        return replace(self, entries=self.entries + entries, timestamp=latest)

    def truncated(self, before: int) -> LogState:
        """Without what lies before an offset; past the end, both ends move. Never backwards."""
        check_integer("an offset", before)
        if before <= self.start:
            return self
        return replace(self, entries=self.entries[before - self.start :], start=before)

    def with_metadata(self, key: str, value: Any, stamp: Stamp) -> LogState:
        """With one entry set."""
        meta = Meta(stamp, True, check_json(value))
        return replace(self, metadata={**self.metadata, key: meta})

    def without_metadata(self, key: str, stamp: Stamp) -> LogState:
        """With one entry deleted: what stays says so to merges."""
        return replace(self, metadata={**self.metadata, key: Meta(stamp, False)})


@overload
def merge(own: LogState, other: LogState | None, *, on_fork: OnFork = ...) -> LogState: ...
@overload
def merge(own: LogState | None, other: LogState, *, on_fork: OnFork = ...) -> LogState: ...
@overload
def merge(own: None, other: None, *, on_fork: OnFork = ...) -> None: ...
def merge(
    own: LogState | None, other: LogState | None, *, on_fork: OnFork = "refuse"
) -> LogState | None:
    """The join of two states; no state at all is less than any.

    Copies that differ below both ends raise `ForkDetected` with the first differing offset; with
    `on_fork="longest"` the longer one is taken.
    """
    for state in (own, other):
        if state is not None and not isinstance(state, LogState):
            raise InvalidInput(f"a state is a LogState, not {type(state).__name__}")
    if on_fork not in ("refuse", "longest"):
        raise InvalidInput(f'on_fork is "refuse" or "longest", not {on_fork!r}')
    if own is None or other is None or own is other:
        return own if other is None else other
    start = max(own.start, other.start)
    mine, theirs = (side.entries[start - side.start :] for side in (own, other))
    where = _difference(mine, theirs)
    if where is not None and on_fork == "refuse":
        raise ForkDetected(
            f"the two copies differ at offset {start + where}, below both ends",
            offset=start + where,
        )
    return LogState(
        max(mine, theirs, key=_rank),
        join(own.metadata, other.metadata),
        max(own.timestamp, other.timestamp),
        start,
    )


def _difference(mine: Run, theirs: Run) -> int | None:
    """The first place at which both have an entry and not the same; None if there is none."""
    for index, (one, two) in enumerate(zip(mine, theirs, strict=False)):
        if one is not two and one.packed() != two.packed():
            return index
    return None


def _rank(run: Run) -> tuple[int, list[bytes]]:
    """The greater is the longer; of equally long ones, that whose last different entry is greater.

    From the end, so that trimming both alike never turns it round.
    """
    return len(run), [entry.packed() for entry in reversed(run)]
