"""Metadata: a small map of a log's configuration and provenance.

Each entry carries a stamp (ms, counter, writer), so that two copies of a log can be merged
whichever way round; a deleted entry leaves a tombstone for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from millstream.errors import TooLarge
from millstream.limits import Limits
from millstream.store.state.entity import Entity

SCHEMA_KEY = "millstream:schema"
"""The entry that holds the versions of the log's schema; users see it as the schema alone."""

TOMBSTONES_MAX = 1_000
"""The most tombstones of deleted entries, which merges need."""


class Stamp(Struct, array_like=True, frozen=True, order=True):
    """The time and the writer of an entry; a merge keeps the entry with the greater stamp."""

    ms: int
    counter: int
    writer: str


class Meta(Struct, array_like=True, frozen=True):
    """An entry with its stamp, and its value unless the entry was deleted."""

    stamp: Stamp
    present: bool
    value: Any = None


class Set(Struct, array_like=True, frozen=True):
    """The change that sets or deletes an entry."""

    key: str
    meta: Meta


class MetadataState(Entity, array_like=True):
    """The metadata of one log."""

    entries: dict[str, Meta] = field(default_factory=dict)

    changes: ClassVar = Set

    def apply(self, change: Set) -> None:
        """Store an entry, and forget the oldest tombstone if there are too many."""
        self.entries[change.key] = change.meta
        gone = [(meta.stamp, key) for key, meta in self.entries.items() if not meta.present]
        if len(gone) > TOMBSTONES_MAX:
            del self.entries[min(gone)[1]]

    def exists(self) -> bool:
        """Return whether there are entries."""
        return bool(self.entries)

    def values(self) -> dict[str, Any]:
        """Return the values of the present entries, except the schema, which has bounds of its own."""
        return values_of(self.entries)

    def next_stamp(self, *, wall_ms: int, writer: str) -> Stamp:
        """Return a stamp greater than all stamps, even if the clock went back."""
        last = max((meta.stamp for meta in self.entries.values()), default=Stamp(0, 0, ""))
        if wall_ms > last.ms:
            return Stamp(wall_ms, 0, writer)
        return Stamp(last.ms, last.counter + 1, writer)


def values_of(entries: Mapping[str, Meta]) -> dict[str, Any]:
    """Return the values of the present entries, except the schema."""
    return {key: meta.value for key, meta in entries.items() if meta.present and key != SCHEMA_KEY}


def check_limits(log: str, values: dict[str, Any], limits: Limits) -> None:
    """Raise if metadata has too many entries or too many bytes."""
    for what, size, limit in (
        ("entries", len(values), limits.metadata_entries_max),
        ("bytes", len(msgspec.msgpack.encode(values)), limits.metadata_bytes_max),
    ):
        if size > limit:
            raise TooLarge(
                f"the metadata of log {log!r} would have {size:,} {what}; the limit is {limit:,}",
                size=size,
                limit=limit,
            )
