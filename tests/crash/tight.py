"""Limits under which a few records already take every path of a store."""

from __future__ import annotations

from millstream import Limits

LIMITS = Limits(
    inline_bytes_max=200,
    fold_slice_deltas=2,
    tail_deltas_max=6,
    fold_deltas_min=1_000_000,
    entities_cached_max=2,
)
"""Small enough that some rows go straight home, writers fold, and entities are evicted."""

LARGE = b"large" * 100
"""A value that does not ride in the delta."""
