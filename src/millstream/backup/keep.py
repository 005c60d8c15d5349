"""The retention of a backup: the points to keep. The newest point is never deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.backup.point import BackupPoint

_AGE = re.compile(r"([0-9]+)\s*(s|m|h|d|w)")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


class Keep(NamedTuple):
    """Points to keep: a number of newest points, or the points of every time in the last `age_ms`."""

    newest: int = 0
    age_ms: int = 0


def parse_keep(text: str) -> Keep:
    """Parse a number of points, such as 30, or an age, such as 7d."""
    if text.isascii() and text.isdecimal() and int(text):
        return Keep(newest=int(text))
    match = _AGE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise InvalidInput(
            f"keep is a number of points such as 30, or an age such as 7d; not {text!r}"
        )
    return Keep(age_ms=int(match[1]) * _UNIT_MS[match[2]])


def kept(points: Sequence[BackupPoint], keep: Keep, now_ms: int) -> list[BackupPoint]:
    """Return the points to keep, from points in the order in which they were added.

    An age keeps one older point too: the commits at the beginning of that time are behind it.
    """
    if not keep.age_ms:
        return list(points[-max(1, keep.newest) :])
    is_old = [point.taken_ms <= now_ms - keep.age_ms for point in points]
    last_old = max((number for number, old in enumerate(is_old) if old), default=0)
    return [
        point for number, point in enumerate(points) if number == last_old or not is_old[number]
    ]
