"""Metadata of a log between copies: sent with its stamps, and joined by stamps.

The stamp of an entry holds the time of the change, a counter and the writer. The entry with the
greater stamp wins. Under equal stamps, which only a copied writer can give out, the entry with the
greater bytes wins. A deleted entry is an entry that is not present; stamps decide about deleted
entries as well.
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
    SCHEMA_KEY,
    TOMBSTONES_MAX,
    Meta,
    MetadataState,
    Set,
    Stamp,
    check_limits,
    values_of,
)
from millstream.log.model.names import check_integer, check_name, check_text
from millstream.log.model.schemas import check_entry
from millstream.log.rules.operations import find_log, need_log
from millstream.replica.commands import GetStampedMetadata
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

COUNTER_MAX = 2**53
"""The highest counter: entries that one writer can set within a millisecond, far below an overflow.
"""

WRITER_CHARS_MAX = 255

DIGEST_BYTES = 8
"""Short, because a digest only detects that copies differ; the entries themselves are then
compared."""

Entries = Mapping[str, Meta]
"""Metadata by key, deleted entries included."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def newer(first: Meta, second: Meta) -> Meta:
    """Return the entry that wins."""
    if first.stamp != second.stamp:
        return first if first.stamp > second.stamp else second
    return first if _encode(first) >= _encode(second) else second


def join(local: Entries, peer: Entries) -> dict[str, Meta]:
    """Return every key of the two copies with the winning entry."""
    return {**local, **news(local, peer)}


def news(local: Entries, peer: Entries) -> dict[str, Meta]:
    """Return the entries of the peer that win over the local ones, or are missing here."""
    winners = {}
    for key, meta in peer.items():
        local_entry = local.get(key)
        if local_entry is None or (
            local_entry is not meta and newer(local_entry, meta) is not local_entry
        ):
            winners[key] = meta
    return winners


def digest_of(entries: Entries) -> bytes:
    """Return a digest of the entries, independent of their order; b"" without entries."""
    return sha256(_encode(dict(entries))).digest()[:DIGEST_BYTES] if entries else b""


def check_entries(entries: Entries) -> None:
    """Refuse metadata that no Millstream store would have written."""
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
        if key == SCHEMA_KEY and present:
            check_entry(meta)


def adopt_metadata(tx: WriteTransaction, log: str, entries: Entries) -> int:
    """Take over the winning entries of another copy's metadata, and return their number."""
    check_entries(entries)
    log_id, _ = need_log(tx, log)
    key = keys.metadata(log_id)
    local = tx.entity(key, MetadataState).entries
    winners = news(local, entries)
    if not winners:
        return 0
    _check_size(tx, log, join(local, winners))
    for name, meta in sorted(winners.items(), key=lambda item: (item[1].stamp, item[0])):
        tx.change(key, Set(name, meta))
    return len(winners)


def _check_size(tx: WriteTransaction, log: str, entries: dict[str, Meta]) -> None:
    values = values_of(entries)
    deleted = sum(not meta.present for meta in entries.values())
    deleted_max = 2 * TOMBSTONES_MAX
    if deleted > deleted_max:
        raise TooLarge(
            f"the metadata of log {log!r} would have {deleted:,} deleted entries; "
            f"the limit is {deleted_max:,}",
            size=deleted,
            limit=deleted_max,
        )
    check_limits(log, values, tx.limits)


def stamped_metadata(view: View, query: GetStampedMetadata) -> dict[str, Meta]:
    """Return every entry with its stamp, deleted entries included; empty if the log does not exist."""
    log = find_log(view, query.log)
    if log is None:
        return {}
    return dict(view.entity(keys.metadata(log[0]), MetadataState).entries)
