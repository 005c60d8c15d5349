"""Every bound of a store: name, default, unit and reason.

A request beyond a bound raises `TooLarge` (it can never fit) or `Overloaded` (slow down). Nothing
grows without a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import TooLarge

KiB = 1024
MiB = 1024 * KiB

NAME_CHARS_MAX = 255
"""Characters in a name: long enough for a path-like name, short enough for a key."""

QUEUE_NAME_CHARS_MAX = NAME_CHARS_MAX - len("queue-later:")
"""Characters in the name of a queue; the names of its logs are longer, and must be valid too."""

CONSUMER_BYTES_MAX = 128
"""UTF-8 bytes in a consumer id."""

ERROR_BYTES_MAX = 64 * 1024
"""Bytes of an error that a consumer stores with a message."""

PROGRESS_BYTES_MAX = 64 * 1024
"""Bytes of the progress that a consumer stores with a message."""

MESSAGE_ID_MAX = 2**63 - 1
"""The last message id: engines may keep it in a signed integer, as SQLite does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one open store; `millstream.open(path, limits=Limits(...))` changes them."""

    value_bytes_max: int = 16 * MiB
    """One record's value: it is held in memory several times on its way to disk."""

    key_bytes_max: int = 64 * KiB
    """One record's key."""

    headers_bytes_max: int = 64 * KiB
    """Encoded headers of a record; filters read the headers of every record."""

    batch_records_max: int = 100_000
    """Records in an append; a batch is a block, and a block is read as a unit."""

    batch_bytes_max: int = 64 * MiB
    """Bytes in an append."""

    waiting_operations_max: int = 10_000
    """Operations that wait for the writer before callers get `Overloaded`."""

    group_operations_max: int = 1_000
    """Operations in a commit; bounds the wait of the first operation for the last."""

    inline_bytes_max: int = 2 * KiB
    """Rows up to this size ride in the delta and move later; larger rows go to their base table."""

    tail_deltas_max: int = 4_096
    """Unfolded commits after which writers wait for the fold: bounds the time to open."""

    tail_bytes_max: int = 8 * MiB
    """Unfolded bytes after which writers wait for the fold: bounds memory and the time to open."""

    tail_entities_max: int = 20_000
    """Unfolded entities after which writers wait for the fold: small ones, such as a queue's groups,
    come by thousands in one commit. Bounds memory and the time to open."""

    fold_deltas_min: int = 512
    """Unfolded commits at which the background fold begins."""

    fold_bytes_min: int = 1 * MiB
    """Unfolded bytes at which the background fold begins."""

    fold_slice_deltas: int = 256
    """Commits folded in one slice: a slice holds the write lock for a few milliseconds."""

    fold_slice_bytes: int = 256 * KiB
    """Bytes folded in one slice."""

    fold_slice_weight: int = 1_000
    """Records written in one slice; an entity that is more work counts for as many."""

    entities_cached_max: int = 10_000
    """Heads, cursors and producers kept in memory while nothing of theirs is unfolded."""

    entities_weight_max: int = 20_000
    """Maximum weight of cached entities; a bucket of a queue weighs as much as 250 cursors."""

    read_bytes_max: int = 4 * MiB
    """Payload fetched in one step of a streaming read."""

    cursor_ranges_max: int = 100_000
    """Gaps among the acknowledged offsets of a cursor."""

    producer_sequences_kept: int = 1_024
    """Appends of one producer that a repeat can be matched against."""

    producer_idle_ms: int = 7 * 24 * 3600 * 1000
    """How long an idle producer's sequences are remembered."""

    metadata_entries_max: int = 1_000
    """Entries in one log's metadata: it is configuration, not data."""

    metadata_bytes_max: int = 64 * KiB
    """Encoded metadata of a log."""

    stage_lease_ms: int = 30_000
    """How long an idle staging handle keeps others from appending, should its process have died."""

    log_age_ms: int = 0
    """How long a log that this handle makes keeps its records, until `retain` says otherwise; 0: unlimited. It is stored with the log. Logs of queues, rooms and the store keep theirs."""

    room_sweep_ms: int = 30_000
    """How often expired messages of rooms are removed: a room may hold them for so long more."""

    disk_free_bytes_min: int = 16 * MiB
    """Free room on the disk below which nothing is published, and below a quarter of which nothing
    is written; of a small disk at most a sixteenth of it. 0: write until the disk is full."""


def too_large(what: str, size: int, limit: int, unit: str = "bytes") -> TooLarge:
    """Return the error for a size beyond its limit."""
    return TooLarge(f"{what} of {size:,} {unit}; the limit is {limit:,}", size=size, limit=limit)
