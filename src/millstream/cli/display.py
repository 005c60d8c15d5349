"""How things look: tables on a terminal, tab-separated lines in a pipe, JSON where asked for.

Stored text is never sent to a terminal as it is: control characters are escaped. Colours are for
terminals, and NO_COLOR turns them off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from millstream.clock import SystemClock
from millstream.queue.model.backoff import Backoff

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))
_EMPTY = ("", "-", "0", "0.0", "no")
"""Cells that say nothing."""

Tell = Callable[[str, int, int], None]
"""Hears of progress: at which stage, how much is done, and of how much."""


class Amount(str):
    """Text that stands on the right of its column, as numbers do."""


@dataclass(frozen=True)
class PrintedLine:
    """One line of text; on standard error if it is a `note`."""

    text: str
    style: str = ""
    note: bool = False

    def show(self) -> None:
        """Print it."""
        stream = sys.stderr if self.note else sys.stdout
        if self.style and stream.isatty():
            from rich.text import Text

            console(stderr=self.note).print(Text(self.text, self.style), soft_wrap=True)
        else:
            stream.write(self.text + "\n")


@dataclass(frozen=True)
class FactSheet:
    """Names and values, one pair per line."""

    pairs: Sequence[tuple[str, Any]]
    styles: Mapping[str, str] = field(default_factory=dict)
    """The colours of values that say something, by their names."""

    def show(self) -> None:
        """Print them."""
        width = max(len(name) for name, _ in self.pairs)
        if not sys.stdout.isatty():
            for name, value in self.pairs:
                say(f"{name}\t{cell(value)}")
            return
        from rich.text import Text

        screen = console()
        for name, value in self.pairs:
            text = cell(value)
            style = "" if text in _EMPTY else self.styles.get(name, "")
            parts = (f"{name:<{width}}  ", "cyan"), (text, style)
            screen.print(Text.assemble(*parts), soft_wrap=True)


@dataclass(frozen=True)
class Table:
    """Rows under their titles; a column of numbers stands on the right.

    Where a terminal is too narrow for a table with `spare` columns, those that say nothing are left
    out, then the spare ones; if that is not enough, each row is a block of lines instead.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    none: str = ""
    """What is said, on standard error, if there are no rows."""
    spare: Sequence[str] = ()
    styles: Mapping[str, str] = field(default_factory=dict)
    """The colours of cells that say something, by their columns."""

    def show(self) -> None:
        """Print it."""
        cells = [[cell(value) for value in row] for row in self.rows]
        if not cells:
            if self.none:
                note(self.none)
        elif sys.stdout.isatty():
            self._show_on_terminal(cells)
        else:
            for row in (self.columns, *cells):
                say("\t".join(row))

    def _show_on_terminal(self, cells: list[list[str]]) -> None:
        from rich import box
        from rich.table import Table as Drawn
        from rich.text import Text

        screen = console()
        right = {
            title
            for index, title in enumerate(self.columns)
            if any(_is_amount(row[index]) for row in self.rows)
        }
        kept = self._fitting(cells, right, screen.width)
        if _narrowest(self.columns, cells, kept, right) > screen.width:
            for row in self.rows:
                FactSheet(list(zip(self.columns, row, strict=True)), self.styles).show()
                say("")
            return
        drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
        for index in kept:
            title = self.columns[index]
            drawn.add_column(
                title,
                justify="right" if title in right else "left",
                no_wrap=title in right,
                overflow="fold",
                header_style="bold",
            )
        for row in cells:
            drawn.add_row(*(Text(row[index], self._style(index, row[index])) for index in kept))
        screen.print(drawn)
        missed = [
            title
            for index, title in enumerate(self.columns)
            if index not in kept and any(row[index] not in _EMPTY for row in cells)
        ]
        if missed:
            note(f"no room for {', '.join(missed)}; a wider terminal or --json shows all")

    def _style(self, index: int, text: str) -> str:
        return "" if text in _EMPTY else self.styles.get(self.columns[index], "")

    def _fitting(self, cells: list[list[str]], right: set[str], width: int) -> list[int]:
        """As many of the columns as fit, the empty ones left out first."""
        kept = list(range(len(self.columns)))
        if not self.spare:
            return kept
        empty = [i for i in kept[:0:-1] if all(row[i] in _EMPTY for row in cells)]
        for index in dict.fromkeys([*empty, *map(self.columns.index, self.spare)]):
            if _narrowest(self.columns, cells, kept, right) <= width:
                break
            kept.remove(index)
        return kept


def _narrowest(
    columns: Sequence[str], cells: list[list[str]], kept: Sequence[int], right: set[str]
) -> int:
    """The least width at which no number and no word is broken."""
    total = 0
    for index in kept:
        column = [columns[index], *(row[index] for row in cells)]
        is_whole = columns[index] in right
        parts = column if is_whole else [word for text in column for word in text.split()]
        total += max(map(len, parts), default=0) + 3
    return total


class Printed:
    """What a command found or did: a value for `--json`, and what people are shown instead."""

    def __init__(
        self, data: Any, *shown: str | PrintedLine | FactSheet | Table, code: int = 0
    ) -> None:
        self.data = data
        self._shown = [PrintedLine(one) if isinstance(one, str) else one for one in shown]
        self._code = code

    def show(self, *, as_json: bool) -> None:
        """Print it, and end with its exit code."""
        if as_json:
            say(json_text(self.data))
        else:
            for part in self._shown:
                part.show()
        if self._code:
            raise typer.Exit(self._code)


def say(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")


def report(text: str) -> None:
    """One line on standard output, at once; if its reader has gone, nothing more is said there.

    For commands that store what they are given: they go on to the end of their input.
    """
    try:
        say(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Send standard output, whose reader has gone, nowhere: also what the interpreter still holds."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(text + "\n")


def json_text(value: Any) -> str:
    """A value as one line of JSON; indented on a terminal."""
    data = msgspec.json.encode(value)
    return (msgspec.json.format(data, indent=2) if sys.stdout.isatty() else data).decode()


def console(*, stderr: bool = False) -> Console:
    """A rich console; colour, width and NO_COLOR are its business."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)


@contextmanager
def progress(first: str, *, wanted: bool = True) -> Iterator[Tell | None]:
    """A bar on standard error, if that is a terminal; `first` is what it begins with."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<18}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield lambda stage, done, total: bar.update(
            task, description=safe(stage), completed=done, total=total or None
        )


def cell(value: Any) -> str:
    """A value as it stands in a table: digits are grouped on a terminal, and plain in a pipe."""
    match value:
        case None | "" | () | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if sys.stdout.isatty() else str(value)
        case float():
            return f"{value:,.1f}"
        case datetime():
            return time_of(value)
        case list() | tuple():
            return ", ".join(map(cell, value))
        case _:
            return safe(str(value))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float | Amount) and not isinstance(value, bool)


def size(count: int) -> Amount:
    """Bytes, in the unit that suits."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return Amount(f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}")


def time_of(time: int | datetime) -> str:
    """A time, in UTC, to the millisecond; an integer is milliseconds since the epoch."""
    moment = datetime.fromtimestamp(time / 1000, UTC) if isinstance(time, int) else time
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


def when(ms: int) -> Amount:
    """How long ago, on a terminal; the time itself in a pipe."""
    if not sys.stdout.isatty():
        return Amount(time_of(ms))
    passed_ms = max(0, SystemClock().wall_ms() - ms)
    return Amount("now" if passed_ms < 1000 else f"{rough(passed_ms)} ago")


def rough(ms: float) -> Amount:
    """A duration in its largest unit, whole ones only."""
    for unit_ms, unit in _SPANS:
        if ms >= unit_ms:
            return Amount(f"{ms // unit_ms:.0f}{unit}")
    return Amount("0s")


def span(ms: float) -> Amount:
    """A duration in its largest whole unit."""
    for unit_ms, unit in _SPANS:
        if ms and ms % unit_ms == 0:
            return Amount(f"{ms // unit_ms:.0f}{unit}")
    return Amount(f"{ms:.0f}ms")


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


def backoff(waits: Backoff) -> str:
    """A backoff as it is typed, and how far it grows."""
    first = span(round(waits.first * 1000))
    if waits.kind == "list":
        return ",".join(span(round(wait * 1000)) for wait in waits.waits)
    if waits.kind == "fixed":
        return first
    return f"{first}*{waits.factor:g}, up to {span(round(waits.most * 1000))}"


def per_second(rate: float) -> str:
    """A rate as it was typed: 5, not 5.0; never 1e+06."""
    return f"{rate:,.6f}".rstrip("0").rstrip(".") + " per second"
