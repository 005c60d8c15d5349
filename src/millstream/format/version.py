"""The format number of a store's rows, the same for every engine, and the versions that know it."""

from __future__ import annotations

FORMAT = 1
"""Stored beside the rows: in the header of a file, or in the object `format` of a bucket.

A store with another number is refused and left unchanged. `keys.VERSION` is independent of it: the
first byte of each key.
"""

FORMAT_SINCE = "0.1.0"
"""The first version of Millstream that knows this format; a store carries it for older versions."""


def format_refusal(place: str, stored: int, since: str, *, known: int = FORMAT) -> str | None:
    """Return why a store of another format is refused, and what to do; None for the known format."""
    if stored == known:
        return None
    if stored > known:
        install = f"millstream>={since}" if since else "--upgrade millstream"
        return (
            f"{place} has format {stored}, and this Millstream knows formats up to {known}; upgrade "
            f"Millstream to open it: pip install '{install}'; nothing was changed"
        )
    return (
        f"{place} has format {stored}, and this Millstream writes format {known}; `millstream migrate "
        f"{place}` converts it and keeps a copy, `--dry-run` says what it would do; nothing was changed"
    )
