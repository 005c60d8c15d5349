"""Options of the SlateDB engine, set in code or behind the `?` of an address."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from millstream.errors import CannotOpen
from millstream.limits import MiB

OPEN_S_MAX = 300.0
"""How long opening may take: SlateDB replays commits that are not compacted, which may be large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateOptions:
    """Options of one handle: `millstream.open("s3://…", options=SlateOptions(...))`."""

    commit_timeout_s: float = 30.0
    """Timeout of a commit; afterwards its outcome is unknown."""

    read_timeout_s: float = 60.0
    """Timeout of one request of a read."""

    pace_s: float = 0.5
    """How long a commit waits for further callers, so that many callers share one request.

    A single caller does not wait, nor do 64 or more at once. With 0, no commit waits.
    """

    follow_s: float = 1.0
    """Age of a read-only handle's snapshot after which it looks for newer commits."""

    cache_folder: str | Path | None = None
    """A folder on a local disk that caches objects; None caches nothing on disk."""

    cache_bytes_max: int = 4096 * MiB
    """Maximum size of the cache folder."""

    memory_cache_bytes: int = 256 * MiB
    """Maximum size of the block cache in memory."""


def options_with(options: SlateOptions, query: str, address: str) -> SlateOptions:
    """Add the options of an address: `s3://bucket/prefix?cache_folder=/var/cache&pace_s=0`."""
    defaults = {field.name: getattr(SlateOptions(), field.name) for field in fields(SlateOptions)}
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in defaults:
            raise _wrong(address, f"it sets {name!r}; what can be set is {', '.join(defaults)}")
        default = defaults[name]
        try:
            values[name] = text if default is None else type(default)(text)
        except ValueError:
            raise _wrong(address, f"{name} is a number, not {text!r}") from None
        if not text or (default is not None and not 0 <= values[name] < math.inf):
            raise _wrong(address, f"{name} is at least 0, and not empty: {text!r} was given")
    return replace(options, **values)


def _wrong(address: str, why: str) -> CannotOpen:
    return CannotOpen(f"{address} cannot be opened: {why}", path=address)
