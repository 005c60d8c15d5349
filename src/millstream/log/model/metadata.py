"""Metadata: a small map of a log's configuration and provenance.

Each entry carries a stamp (ms, counter, writer), so that two copies of a log can be merged
whichever way round; a deleted entry leaves a tombstone for the same reason.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from millstream.errors import TooLarge
from millstream.limits import Limits
from millstream.store.state.entity import Entity

TOMBSTONES_MAX = 1_000
"""Deleted entries that are remembered for merges."""


class Stamp(Struct, array_like=True, frozen=True, order=True):
    """When and by whom an entry was set; the greater one wins a merge."""

    ms: int
    counter: int
    writer: str


class Meta(Struct, array_like=True, frozen=True):
    """One entry: its stamp and its value, or none if it was deleted."""

    stamp: Stamp
    present: bool
    value: Any = None


class Set(Struct, array_like=True, frozen=True):
    """One entry was set, or deleted."""

    key: str
    meta: Meta


class MetadataState(Entity, array_like=True):
    """The metadata of one log."""

    entries: dict[str, Meta] = field(default_factory=dict)

    changes: ClassVar = Set

    def apply(self, change: Set) -> None:
        """Take over one entry; of too many tombstones the oldest is forgotten."""
        self.entries[change.key] = change.meta
        gone = [(meta.stamp, key) for key, meta in self.entries.items() if not meta.present]
        if len(gone) > TOMBSTONES_MAX:
            del self.entries[min(gone)[1]]

    def exists(self) -> bool:
        """Without entries there is no record."""
        return bool(self.entries)

    def values(self) -> dict[str, Any]:
        """The entries that are present."""
        return {key: meta.value for key, meta in self.entries.items() if meta.present}

    def next_stamp(self, *, wall_ms: int, writer: str) -> Stamp:
        """A stamp above every one so far, also when the clock went back."""
        last = max((meta.stamp for meta in self.entries.values()), default=Stamp(0, 0, ""))
        if wall_ms > last.ms:
            return Stamp(wall_ms, 0, writer)
        return Stamp(last.ms, last.counter + 1, writer)


def check_limits(log: str, values: dict[str, Any], limits: Limits) -> None:
    """Refuse metadata that is more than configuration: too many entries, or too large."""
    for what, size, most in (
        ("entries", len(values), limits.metadata_entries_max),
        ("bytes", len(msgspec.msgpack.encode(values)), limits.metadata_bytes_max),
    ):
        if size > most:
            raise TooLarge(
                f"the metadata of log {log!r} would have {size:,} {what}; the limit is {most:,}",
                size=size,
                limit=most,
            )
