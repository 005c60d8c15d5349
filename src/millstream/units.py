"""Units: durations and sizes as users write them, such as `15m` and `64MiB`, and as numbers. Pure."""

from __future__ import annotations

import re
from math import inf

from millstream.errors import InvalidInput

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_MILLISECONDS = {
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "": 1_000,
    "ms": 1,
}
_WRITTEN = ("d", "h", "m", "s", "ms")
"""The units of written durations, the largest first."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def is_duration(text: str) -> bool:
    """Return whether a text is written as a duration."""
    return _DURATION.fullmatch(text.strip()) is not None


def parse_duration(text: str) -> float:
    """Parse 90, 90s, 15m, 12h, 7d, 2w or 250ms into seconds."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _MILLISECONDS[match[2] or ""] / 1000 if match else inf
    if seconds == inf:
        raise InvalidInput(f"a duration must look like 90s, 15m, 12h, 7d or 2w, not {text!r:.100}")
    return seconds


def duration_text(seconds: float) -> str | float:
    """Return a duration in the largest unit that fits; the number itself if no unit is exact."""
    for unit in _WRITTEN:
        count, remainder = divmod(round(seconds * 1000), _MILLISECONDS[unit])
        text = f"{count}{unit}"
        if count and not remainder and parse_duration(text) == seconds:
            return text
    return seconds


def parse_size(text: str) -> int:
    """Parse 500, 10kB, 64MiB or 1GiB into bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"a size must look like 500, 10kB, 64MiB or 1GiB, not {text!r:.100}")
    unit = (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match[1]) * base ** _POWERS[unit.removesuffix("i")])


def size_text(count: int) -> str | int:
    """Return bytes in the largest unit that fits; the number itself if no unit is exact."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        amount, remainder = divmod(count, 1024**power)
        if amount and not remainder and parse_size(f"{amount}{unit}") == count:
            return f"{amount}{unit}"
    return count
