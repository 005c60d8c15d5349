"""Arguments of the command line as values: headers, times, durations, sizes, offsets."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import typer

from millstream import units
from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.header import Headers, HeaderValue, Pair
from millstream.queue.model.backoff import Backoff, backoff_of_text
from millstream.record import to_ms, wall_ms_of

Parsed = TypeVar("Parsed")


def parse_headers(pairs: Iterable[str]) -> Headers:
    """Parse `name=value` pairs: numbers, true, false, null and "quoted text" are typed, others are
    text.

    `name:=value` accepts JSON only, in which {"base64": "…"} is bytes. A repeated name keeps all
    values.
    """
    headers: list[Pair] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        strict = name.endswith(":")
        name = name.removesuffix(":") if strict else name
        if not equals or not name:
            raise typer.BadParameter(f"a header must be name=value, not {pair!r}")
        headers.append((name, _header(text, strict=strict, pair=pair)))
    return Headers(headers)


def _header(text: str, *, strict: bool, pair: str) -> HeaderValue:
    try:
        value = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        if strict:
            raise typer.BadParameter(f"the header {pair!r} has no JSON after :=") from None
        return text
    if isinstance(value, str | int | float | bool | None):
        return value
    if not strict:
        return text
    try:
        data: bytes = b64decode(value["base64"], validate=True)
    except (TypeError, KeyError, ValueError):
        raise typer.BadParameter(
            f'a header must be text, a number, true, false, null or {{"base64": "…"}}: {pair!r}'
        ) from None
    return data


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; other text is returned as is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def parse_timestamp(text: str) -> int:
    """Parse milliseconds since the epoch, or a time such as 2026-05-04T12:00:00+02:00."""
    return int(text) if text.isdecimal() else wall_ms_of(parse_time(text))


def parse_time(text: str) -> datetime:
    """Parse a time such as 2026-05-04T12:00:00+02:00; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"a time must look like 2026-12-24T18:30 or 2026-12-24T18:30+01:00, not {text!r}"
        ) from None


def parse_past(text: str) -> int:
    """Parse a time, or an age such as 15m, into milliseconds since the epoch."""
    if units.is_duration(text):
        return SystemClock().wall_ms() - to_ms(parse_duration(text))
    return wall_ms_of(parse_time(text))


def parse_duration(text: str) -> float:
    """Parse 90, 90s, 15m, 12h, 7d, 2w or 250ms into seconds."""
    return _as_typed(units.parse_duration, text)


def _as_typed(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse a text of the command line: a wrong text is a wrong option."""
    try:
        return parse(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None


def duration(help: str, *, default: str | bool = True) -> Any:
    """Return an option that is typed as a duration; the command gets seconds."""
    return typer.Option(parser=parse_duration, metavar="DURATION", help=help, show_default=default)


def parse_size(text: str) -> int:
    """Parse 500, 10kB, 64MiB or 1GiB into bytes."""
    return _as_typed(units.parse_size, text)


def parse_position(text: str, *, start: int, end: int) -> int:
    """Parse an offset: a number, `earliest`, `latest`, or -10 for the last ten records."""
    if text == "earliest":
        return start
    if text == "latest":
        return end
    try:
        number = int(text)
    except ValueError:
        raise typer.BadParameter(
            f"an offset must be a number, earliest, latest, or -10 for the last ten; not {text!r}"
        ) from None
    return number if number >= 0 else max(start, end + number)


def parse_backoff(text: str) -> Backoff:
    """Parse `5s`, `1s,10s,1m` or `1s*2` into a backoff."""
    return _as_typed(backoff_of_text, text)
