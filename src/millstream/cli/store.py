"""`millstream stats` and `millstream fold`: the store as a whole."""

from __future__ import annotations

from typing import Any

from millstream import Millstream
from millstream.cli.display import FactSheet, Printed, plural, safe, size


def stats(ms: Millstream) -> Printed:
    """Show facts and counters of the store."""
    logs = list(ms.logs())
    facts = ms.stats() | {
        "logs": len(logs),
        "records": sum(len(info) for info in logs),
        "bytes": sum(info.bytes for info in logs),
    }
    pairs = [
        (name.replace("_", " "), _shown(name, value))
        for name, value in facts.items()
        if value is not None
    ]
    return Printed(facts, FactSheet(pairs))


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return "\n".join(map(safe, value)) or "none"
    return size(value) if name.endswith("bytes") else value


def fold(ms: Millstream) -> Printed:
    """Fold all commits into base rows now."""
    folded = ms.fold()
    return Printed({"folded": folded}, f"{plural(folded, 'commit')} folded")
