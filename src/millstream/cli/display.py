"""Display: tables on a terminal, tab-separated lines in a pipe, JSON on request.

Control characters of stored text are escaped before they reach a terminal. Colours are for
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
"""Cells without information."""

Tell = Callable[[str, int, int], None]
"""Receives progress: the stage, the amount done, and the total amount."""


class Amount(str):
    """Text that is aligned to the right, as numbers are."""


@dataclass(frozen=True)
class PrintedLine:
    """A line of text; on standard error if it is a `note`."""

    text: str
    style: str = ""
    note: bool = False

    def show(self) -> None:
        """Print the line."""
        stream = sys.stderr if self.note else sys.stdout
        if self.style and stream.isatty():
            from rich.text import Text

            console(stderr=self.note).print(Text(self.text, self.style), soft_wrap=True)
        else:
            stream.write(self.text + "\n")


@dataclass(frozen=True)
class FactSheet:
    """Names and values, a pair per line."""

    pairs: Sequence[tuple[str, Any]]
    styles: Mapping[str, str] = field(default_factory=dict)
    """The colours of values that are not empty, by name."""

    def show(self) -> None:
        """Print the pairs."""
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
            label_and_value = (f"{name:<{width}}  ", "cyan"), (text, style)
            screen.print(Text.assemble(*label_and_value), soft_wrap=True)


@dataclass(frozen=True)
class Table:
    """Rows under titles; columns of numbers are aligned to the right.

    If the terminal is too narrow for a table with `spare` columns, the table first drops empty
    columns, then the spare ones. If that is not enough, each row becomes a block of lines.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    none: str = ""
    """The text on standard error if there are no rows."""
    spare: Sequence[str] = ()
    styles: Mapping[str, str] = field(default_factory=dict)
    """The colours of cells that are not empty, by column."""

    def show(self) -> None:
        """Print the table."""
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
        columns_shown = self._fitting(cells, right, screen.width)
        if _narrowest(self.columns, cells, columns_shown, right) > screen.width:
            for row in self.rows:
                FactSheet(list(zip(self.columns, row, strict=True)), self.styles).show()
                say("")
            return
        drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
        for index in columns_shown:
            title = self.columns[index]
            drawn.add_column(
                title,
                justify="right" if title in right else "left",
                no_wrap=title in right,
                overflow="fold",
                header_style="bold",
            )
        for row in cells:
            drawn.add_row(
                *(Text(row[index], self._style(index, row[index])) for index in columns_shown)
            )
        screen.print(drawn)
        missed = [
            title
            for index, title in enumerate(self.columns)
            if index not in columns_shown and any(row[index] not in _EMPTY for row in cells)
        ]
        if missed:
            note(
                f"not enough columns for {', '.join(missed)}; a wider terminal or --json shows all"
            )

    def _style(self, index: int, text: str) -> str:
        return "" if text in _EMPTY else self.styles.get(self.columns[index], "")

    def _fitting(self, cells: list[list[str]], right: set[str], width: int) -> list[int]:
        """Return the indexes of the columns that fit; drop empty columns first."""
        columns_shown = list(range(len(self.columns)))
        if not self.spare:
            return columns_shown
        empty = [i for i in columns_shown[:0:-1] if all(row[i] in _EMPTY for row in cells)]
        for index in dict.fromkeys([*empty, *map(self.columns.index, self.spare)]):
            if _narrowest(self.columns, cells, columns_shown, right) <= width:
                break
            columns_shown.remove(index)
        return columns_shown


def _narrowest(
    columns: Sequence[str], cells: list[list[str]], columns_shown: Sequence[int], right: set[str]
) -> int:
    """Return the least width that breaks no number and no word."""
    total = 0
    for index in columns_shown:
        column = [columns[index], *(row[index] for row in cells)]
        is_number = columns[index] in right
        words = column if is_number else [word for text in column for word in text.split()]
        total += max(map(len, words), default=0) + 3
    return total


class Printed:
    """The output of a command: a value for `--json`, and the form for people."""

    def __init__(
        self, data: Any, *shown: str | PrintedLine | FactSheet | Table, code: int = 0
    ) -> None:
        self.data = data
        self._shown = [PrintedLine(item) if isinstance(item, str) else item for item in shown]
        self._code = code

    def show(self, *, as_json: bool) -> None:
        """Print the output, and exit with its code."""
        if as_json:
            say(json_text(self.data))
        else:
            for item in self._shown:
                item.show()
        if self._code:
            raise typer.Exit(self._code)


def say(text: str) -> None:
    """Print a line on standard output."""
    sys.stdout.write(text + "\n")


def report(text: str) -> None:
    """Print a line on standard output at once; print nothing more if the reader has gone.

    For commands that store their input and must read it to the end.
    """
    try:
        say(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Redirect standard output, whose reader has gone, to the null device, with buffered text."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def note(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(text + "\n")


def json_text(value: Any) -> str:
    """Return a value as one line of JSON; indented on a terminal."""
    data = msgspec.json.encode(value)
    return (msgspec.json.format(data, indent=2) if sys.stdout.isatty() else data).decode()


def console(*, stderr: bool = False) -> Console:
    """Return a rich console, which handles colour, width and NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)


@contextmanager
def progress(first: str, *, enabled: bool = True) -> Iterator[Tell | None]:
    """Show a progress bar on standard error, if it is a terminal; `first` is the first stage."""
    if not enabled or not sys.stderr.isatty():
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
    """Return a value as text of a table; digits are grouped on a terminal, and plain in a pipe."""
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
    """Return bytes in a suitable unit."""
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return Amount(f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}")


def time_of(time: int | datetime) -> str:
    """Return a time in UTC, to the millisecond; an integer is milliseconds since the epoch."""
    moment = datetime.fromtimestamp(time / 1000, UTC) if isinstance(time, int) else time
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"


def when(ms: int) -> Amount:
    """Return an age on a terminal, and a time in a pipe."""
    if not sys.stdout.isatty():
        return Amount(time_of(ms))
    passed_ms = max(0, SystemClock().wall_ms() - ms)
    return Amount("now" if passed_ms < 1000 else f"{rough(passed_ms)} ago")


def rough(ms: float) -> Amount:
    """Return a duration in its largest unit, rounded down."""
    for unit_ms, unit in _SPANS:
        if ms >= unit_ms:
            return Amount(f"{ms // unit_ms:.0f}{unit}")
    return Amount("0s")


def span(ms: float) -> Amount:
    """Return a duration exactly, in the largest unit that fits."""
    for unit_ms, unit in _SPANS:
        if ms and ms % unit_ms == 0:
            return Amount(f"{ms // unit_ms:.0f}{unit}")
    return Amount(f"{ms:.0f}ms")


def plural(count: int, word: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def offsets(start: int, stop: int) -> str:
    """Return a half-open range in words."""
    return f"offset {start}" if stop == start + 1 else f"offsets {start} to {stop - 1}"


def safe(data: bytes | str) -> str:
    """Return text for a terminal; unprintable characters are escaped."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def backoff(waits: Backoff) -> str:
    """Return a backoff as it is typed, and its maximum."""
    first = span(round(waits.first * 1000))
    if waits.kind == "list":
        return ",".join(span(round(wait * 1000)) for wait in waits.waits)
    if waits.kind == "fixed":
        return first
    return f"{first}*{waits.factor:g}, up to {span(round(waits.most * 1000))}"


def per_second(rate: float) -> str:
    """Return a rate as it was typed: 5, not 5.0; never 1e+06."""
    return f"{rate:,.6f}".rstrip("0").rstrip(".") + " per second"
