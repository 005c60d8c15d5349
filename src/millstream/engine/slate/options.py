"""What can be set of the SlateDB engine alone, in code or behind the `?` of an address."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from millstream.errors import CannotOpen
from millstream.limits import MiB

OPEN_S_MAX = 300.0
"""How long opening may take: it replays commits that are not gathered yet, which may be large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateOptions:
    """How one handle uses its bucket; `millstream.open("s3://…", options=SlateOptions(...))` says so."""

    commit_timeout_s: float = 30.0
    """How long a commit waits for the object store before its outcome is called unknown."""

    read_timeout_s: float = 60.0
    """How long one step of a read waits for the object store before it fails."""

    pace_s: float = 0.5
    """How long a commit waits for callers that come one by one, so that many share one request.

    A caller alone does not wait for it, nor do 64 and more at once. With 0, none waits.
    """

    follow_s: float = 1.0
    """How old what a read-only handle shows may be, before it looks for newer commits."""

    cache_folder: str | Path | None = None
    """A folder on a local disk for parts of objects that were read; None keeps none."""

    cache_bytes_max: int = 4096 * MiB
    """How much that folder may hold."""

    memory_cache_bytes: int = 256 * MiB
    """How many bytes of blocks that were read stay in memory."""


def options_with(options: SlateOptions, query: str, address: str) -> SlateOptions:
    """Options with what an address sets: `s3://bucket/prefix?cache_folder=/var/cache&pace_s=0`."""
    known = {field.name: getattr(SlateOptions(), field.name) for field in fields(SlateOptions)}
    given: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise _wrong(address, f"it sets {name!r}; what can be set is {', '.join(known)}")
        default = known[name]
        try:
            given[name] = text if default is None else type(default)(text)
        except ValueError:
            raise _wrong(address, f"{name} is a number, not {text!r}") from None
        if not text or (default is not None and not 0 <= given[name] < math.inf):
            raise _wrong(address, f"{name} is at least 0, and not empty: {text!r} was given")
    return replace(options, **given)


def _wrong(address: str, why: str) -> CannotOpen:
    return CannotOpen(f"{address} cannot be opened: {why}", path=address)
