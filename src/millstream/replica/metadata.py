"""Metadata of a log between copies: handed out with its stamps, and joined by them.

An entry carries when it was set, a counter and who set it. The greater stamp wins; under equal
stamps, which only a writer that was copied can give out, the greater bytes do. A deleted entry is
one that is not present: it has a stamp, and wins or loses as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from millstream.errors import InvalidInput, TooLarge
from millstream.format import keys
from millstream.format.packing import TIMESTAMP_MS_MAX
from millstream.log.model.metadata import (
    TOMBSTONES_MAX,
    Meta,
    MetadataState,
    Set,
    Stamp,
    check_limits,
)
from millstream.log.model.names import check_integer, check_name, check_text
from millstream.log.rules.operations import find_log, need_log
from millstream.replica.commands import GetStampedMetadata
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

COUNTER_MAX = 2**53
"""Entries set within one millisecond: far beyond what a writer reaches, far below what overflows."""

WRITER_CHARS_MAX = 255

DIGEST_BYTES = 8
"""Of a digest: it tells copies apart that differ by accident; entries themselves are compared."""

Entries = Mapping[str, Meta]
"""Metadata by key, deleted entries included."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def newer(one: Meta, other: Meta) -> Meta:
    """The entry that counts."""
    if one.stamp != other.stamp:
        return one if one.stamp > other.stamp else other
    return one if _encode(one) >= _encode(other) else other


def join(own: Entries, other: Entries) -> dict[str, Meta]:
    """Every key of both, each with the entry that counts."""
    return {**own, **news(own, other)}


def news(own: Entries, other: Entries) -> dict[str, Meta]:
    """What `other` has that counts, and `own` has not."""
    found = {}
    for key, meta in other.items():
        mine = own.get(key)
        if mine is None or (mine is not meta and newer(mine, meta) is not mine):
            found[key] = meta
    return found


def digest_of(entries: Entries) -> bytes:
    """A digest that is the same for the same entries; b"" for none."""
    return sha256(_encode(dict(entries))).digest()[:DIGEST_BYTES] if entries else b""


def check_entries(entries: Entries) -> None:
    """Refuse metadata that no store of ours would have written."""
    if not isinstance(entries, Mapping):
        raise InvalidInput(f"metadata is a map, not {type(entries).__name__}")
    for key, meta in entries.items():
        check_name(key, "metadata")
        stamp: Any = getattr(meta, "stamp", None)
        if type(meta) is not Meta or type(stamp) is not Stamp:
            raise InvalidInput(f"metadata {key!r} has no stamp")
        check_integer("a stamp's time", stamp.ms)
        check_integer("a stamp's counter", stamp.counter)
        check_text("a stamp's writer", stamp.writer)
        if stamp.ms > TIMESTAMP_MS_MAX or stamp.counter > COUNTER_MAX:
            raise InvalidInput(f"metadata {key!r} has a stamp out of bounds: {stamp}")
        if len(stamp.writer) > WRITER_CHARS_MAX:
            raise InvalidInput(f"metadata {key!r} has a writer of {len(stamp.writer)} characters")
        present: Any = meta.present
        if type(present) is not bool or (not present and meta.value is not None):
            raise InvalidInput(f"metadata {key!r} is deleted and has a value")


def adopt_metadata(tx: WriteTransaction, log: str, entries: Entries) -> int:
    """Take over what counts of another copy's metadata; answers how many entries that were."""
    check_entries(entries)
    log_id, _ = need_log(tx, log)
    key = keys.metadata(log_id)
    own = tx.entity(key, MetadataState).entries
    found = news(own, entries)
    if not found:
        return 0
    _check_size(tx, log, join(own, found))
    for name, meta in sorted(found.items(), key=lambda item: (item[1].stamp, item[0])):
        tx.change(key, Set(name, meta))
    return len(found)


def _check_size(tx: WriteTransaction, log: str, entries: dict[str, Meta]) -> None:
    values = {key: meta.value for key, meta in entries.items() if meta.present}
    deleted, most = len(entries) - len(values), 2 * TOMBSTONES_MAX
    if deleted > most:
        raise TooLarge(
            f"the metadata of log {log!r} would have {deleted:,} deleted entries; "
            f"the limit is {most:,}",
            size=deleted,
            limit=most,
        )
    check_limits(log, values, tx.limits)


def stamped_metadata(view: View, query: GetStampedMetadata) -> dict[str, Meta]:
    """Every entry with its stamp, deleted ones included; none if there is no such log."""
    found = find_log(view, query.log)
    if found is None:
        return {}
    return dict(view.entity(keys.metadata(found[0]), MetadataState).entries)
