"""How things look: tables on a terminal, tab-separated lines in a pipe, JSON where asked for.

Stored text is never sent to a terminal as it is: control characters are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.record import CursorInfo, LogInfo, Record, Retention

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))
_JSON = "application/json"
_EMPTY = ("", "-", "0", "0.0", "no")
"""Cells that say nothing."""


def say(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")


def say_styled(text: str, style: str) -> None:
    """One line on standard output, coloured on a terminal that has colours."""
    if not sys.stdout.isatty():
        say(text)
        return
    from rich.text import Text

    console().print(Text(text, style=style))


def note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(text + "\n")


def say_json(value: Any) -> None:
    """One line of JSON on standard output; indented on a terminal."""
    data = msgspec.json.encode(value)
    say((msgspec.json.format(data, indent=2) if sys.stdout.isatty() else data).decode())


def console(*, stderr: bool = False) -> Console:
    """A rich console; colour, width and NO_COLOR are its business."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)


def say_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Rows under their titles; `numbers` names the columns that stand on the right.

    Where a terminal is too narrow for a table with `spare` columns, those that say nothing are left
    out, then the spare ones; if that is not enough, each row is a block of lines instead.
    """
    rows = list(rows)
    if not sys.stdout.isatty():
        say("\t".join(columns))
        for row in rows:
            say("\t".join(row))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    right = set(numbers)
    everything = columns, rows
    if spare:
        columns, rows = _fitting(columns, rows, right, spare, screen.width)
    missed = [
        title
        for index, title in enumerate(everything[0])
        if title not in columns and any(row[index] not in _EMPTY for row in everything[1])
    ]
    if _narrowest(columns, rows, right) > screen.width:
        columns, rows = everything
        for row in rows:
            say_facts(zip(columns, row, strict=True))
            say("")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in columns:
        table.add_column(
            title,
            justify="right" if title in right else "left",
            no_wrap=title in right,
            overflow="fold",
            header_style="bold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    screen.print(table)
    if missed:
        note(f"no room for {', '.join(missed)}; a wider terminal or --json shows all")


def _fitting(
    columns: Sequence[str],
    rows: list[Sequence[str]],
    right: set[str],
    spare: Sequence[str],
    width: int,
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """As many of the columns as fit, the empty ones left out first."""
    empty = [
        title
        for index, title in enumerate(columns)
        if index and all(row[index] in _EMPTY for row in rows)
    ]
    for title in dict.fromkeys([*empty[::-1], *spare]):
        if _narrowest(columns, rows, right) <= width:
            break
        gone = columns.index(title)
        columns = [*columns[:gone], *columns[gone + 1 :]]
        rows = [[*row[:gone], *row[gone + 1 :]] for row in rows]
    return columns, rows


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]], right: set[str]) -> int:
    """The least width at which no number and no word is broken."""
    total = 0
    for index, title in enumerate(columns):
        cells = [title, *(row[index] for row in rows)]
        parts = cells if title in right else [word for cell in cells for word in cell.split()]
        total += max(map(len, parts), default=0) + 3
    return total


def say_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair per line."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        say(f"{name:<{width}}  {value}" if sys.stdout.isatty() else f"{name}\t{value}")


def size(count: int) -> str:
    """Bytes, in the unit that suits."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def time_of(time: int | datetime) -> str:
    """A time, in UTC, to the millisecond; an integer is milliseconds since the epoch."""
    moment = datetime.fromtimestamp(time / 1000, UTC) if isinstance(time, int) else time
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


def when(ms: int) -> str:
    """How long ago, on a terminal; the time itself in a pipe."""
    if not sys.stdout.isatty():
        return time_of(ms)
    from millstream.clock import SystemClock

    passed_ms = max(0, SystemClock().wall_ms() - ms)
    return "now" if passed_ms < 1000 else f"{rough(passed_ms)} ago"


def rough(ms: int) -> str:
    """A duration in its largest unit, whole ones only."""
    for unit_ms, unit in _SPANS:
        if ms >= unit_ms:
            return f"{ms // unit_ms}{unit}"
    return "0s"


def span(ms: int) -> str:
    """A duration in its largest whole unit."""
    for unit_ms, unit in _SPANS:
        if ms and ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return f"{ms}ms"


def plural(count: int, word: str) -> str:
    """A count and its noun."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def offsets(start: int, stop: int) -> str:
    """A half-open range as people say it."""
    return f"offset {start}" if stop == start + 1 else f"offsets {start} to {stop - 1}"


def safe(data: bytes | str) -> str:
    """Text for a terminal; what is not printable text is escaped."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def record_line(record: Record) -> str:
    """A record on one line: offset, time, key, value."""
    key = "-" if record.key is None else safe(record.key)
    fields = str(record.offset), time_of(record.timestamp), key, safe(record.value)
    if not sys.stdout.isatty():
        return "\t".join(fields)
    return f"{fields[0]:>8}  {fields[1]}  {fields[2]:<10}  {fields[3]}"


def record_json(record: Record) -> dict[str, Any]:
    """A record as one JSON object; `value_encoding` says how its value is to be read."""
    value, encoding = _embedded(record)
    found = {
        "log": record.log,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "appended": record.appended,
        "key": None,
        "headers": dict(record.headers),
        "value": value,
        "value_encoding": encoding,
    }
    if record.key is not None:
        found["key"], found["key_encoding"] = _text_or_base64(record.key)
    return found


def _embedded(record: Record) -> tuple[Any, str]:
    if record.headers.get("content-type") == _JSON:
        try:
            return msgspec.json.decode(record.value), "json"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # the header promises too much: show it as what it is
    return _text_or_base64(record.value)


def _text_or_base64(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        from base64 import b64encode

        return b64encode(data).decode(), "base64"


def rules(retention: Retention) -> str:
    """What a log may forget, on one line."""
    found = []
    if retention.age_ms is not None:
        found.append(f"age {span(retention.age_ms)}")
    if retention.bytes is not None:
        found.append(f"bytes {size(retention.bytes)}")
    if retention.count is not None:
        found.append(f"count {retention.count:,}")
    if retention.consumed:
        found.append("consumed")
    return ", ".join(found) or "keep all"


def log_json(info: LogInfo) -> dict[str, Any]:
    """A log's facts as one JSON object."""
    return {**msgspec.to_builtins(info), "records": len(info)}


def cursor_json(info: CursorInfo) -> dict[str, Any]:
    """A cursor's facts as one JSON object."""
    found: dict[str, Any] = msgspec.to_builtins(info)
    return found
