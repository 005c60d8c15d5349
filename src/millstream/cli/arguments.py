"""What is typed on a command line, as values: headers, times, durations, sizes, offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from math import inf
from typing import Any

import msgspec
import typer

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "": 1}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SCALARS = (str, int, float, bool, type(None))


def parse_headers(given: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs: numbers, true, false, null and "quoted text" are typed, the rest is text.

    `name:=value` takes JSON only.
    """
    headers: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        strict = name.endswith(":")
        name = name.removesuffix(":") if strict else name
        if not equals or not name:
            raise typer.BadParameter(f"a header is name=value, not {pair!r}")
        headers[name] = _scalar(text, strict=strict, pair=pair)
    return headers


def _scalar(text: str, *, strict: bool, pair: str) -> Any:
    try:
        value = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        if strict:
            raise typer.BadParameter(f"the header {pair!r} is not JSON behind :=") from None
        return text
    if isinstance(value, _SCALARS):
        return value
    if strict:
        raise typer.BadParameter(f"a header is text, a number, true, false or null: {pair!r}")
    return text


def parse_json(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def parse_timestamp(text: str | None) -> int | None:
    """Milliseconds since the epoch, or a time such as 2026-05-04T12:00:00+02:00."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"a time is milliseconds since the epoch or ISO 8601, not {text!r}"
        ) from None


def parse_time(text: str) -> datetime:
    """A time such as 2026-05-04T12:00:00+02:00; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"a time is like 2026-12-24T18:30 or 2026-12-24T18:30+01:00, not {text!r}"
        ) from None


def parse_duration(text: str) -> float:
    """Seconds from 90, 90s, 15m, 12h, 7d, 2w or 250ms."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or ""] if found else inf
    if seconds == inf:
        raise typer.BadParameter(f"a duration is like 90s, 15m, 12h, 7d or 2w, not {text!r}")
    return seconds


def parse_size(text: str) -> int:
    """Bytes from 500, 10kB, 64MiB or 1GiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"a size is like 500, 10kB, 64MiB or 1GiB, not {text!r}")
    unit = (found[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(found[1]) * base ** _POWERS[unit.removesuffix("i")])


def parse_position(text: str, *, start: int, end: int) -> int:
    """An offset: a number, `earliest`, `latest`, or -10 for the last ten records."""
    if text == "earliest":
        return start
    if text == "latest":
        return end
    try:
        number = int(text)
    except ValueError:
        raise typer.BadParameter(
            f"an offset is a number, earliest, latest, or -10 for the last ten; not {text!r}"
        ) from None
    return number if number >= 0 else max(start, end + number)
