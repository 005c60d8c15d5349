"""Log lines of a server for the bundle of `millstream doctor`, without data of users.

A line keeps its time, level, event and numbers. It loses the names of logs, queues, rooms and clients,
the paths of requests, and every other text: only known fields with texts of Millstream itself stay.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

LINES_MAX = 10_000
"""The last lines that a bundle has."""

OWN_TEXTS = ("time", "level", "command", "waited_for", "error", "method", "stage")
"""Fields whose texts come from Millstream."""

_NAME = re.compile(r"[A-Za-z0-9_.: -]{1,64}")
_PLACE = re.compile(r"(?:^|/)((?:millstream/)?[\w./-]*?\w+\.py:\d+)$")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def cleaned_lines(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the last lines without data of users; and how many lines are no lines of a server."""
    kept: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)
    unreadable = 0
    for line in lines:
        try:
            facts = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += bool(line.strip())
            continue
        kept.append(cleaned_facts(facts))
    return list(kept), unreadable


def cleaned_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a line that tell nothing of users."""
    logger = str(facts.get("logger", "millstream.access"))
    is_own = logger.startswith("millstream.") and _NAME.fullmatch(logger) is not None
    cleaned: dict[str, Any] = {"logger": logger if is_own else "(another)"}
    for name, value in facts.items():
        if not _NAME.fullmatch(name) or name == "logger":
            continue
        if isinstance(value, bool | int | float):
            cleaned[name] = value
        elif isinstance(value, str) and is_own:
            if (name == "event" or name in OWN_TEXTS) and _NAME.fullmatch(value):
                cleaned[name] = value
            elif name == "where" and (place := _PLACE.search(value)) is not None:
                cleaned[name] = _inside(place[1])
    return cleaned


def _inside(place: str) -> str:
    """Return a place without the folders above the package; a file of others without folders."""
    _, mark, inner = place.rpartition("millstream/")
    return mark + inner if mark else place.rpartition("/")[2]
