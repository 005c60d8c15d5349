"""Charts as inline SVG: drawn from numbers, coloured by the page's style, explained on hovering.

A chart takes its width from the page and its colours from classes, so it is readable in light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, isfinite, log10

from msgspec import Struct

WIDE, HALF = 1060, 500
"""Widths of charts that fill the page or half of it: about its pixels, so that texts are of one size."""

HEIGHT = 220
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 26
TICKS = 4
LABELS = 6
ROW = 26
NAME_CHARS = 32
NOTE_WIDTH = 140


class Series(Struct, frozen=True, kw_only=True):
    """Numbers at the steps of a chart, under a name; None where there is none."""

    name: str
    style: str
    values: Sequence[float | None]


Show = Callable[[float], str]
Bar = tuple[str, Sequence[tuple[str, float]], str]
"""A name, the bar's parts as (style, number), and a note behind it."""


def count(number: float) -> str:
    """A whole number, short."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            size = number / (1e3 if unit == "k" else limit)
            return f"{size:.3g}{unit}"
    return f"{number:,.0f}" if number == floor(number) else f"{number:,.1f}"


def duration(seconds: float | None) -> str:
    """A time that something took, to about three digits."""
    if seconds is None or not isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 172_800 else f"{seconds / 86_400:.3g} d"


def moment(at_ms: int, step_ms: int) -> str:
    """A time as a label: the day where steps are days, else the time of day."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(
        "%d %b" if step_ms >= 86_400_000 else "%H:%M"
    )


def full_moment(at_ms: int) -> str:
    """A time, to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def steps_between(first_ms: int, last_ms: int, step_ms: int) -> list[int]:
    """The beginnings of all steps from one time to another."""
    first = first_ms // step_ms * step_ms
    return list(range(first, max(first, last_ms) + 1, step_ms))


def ticks_to(most: float, *, whole: bool = False) -> list[float]:
    """Numbers that are easy to read, from 0 up to the most that is shown or a little more."""
    if most <= 0:
        return [0.0, 1.0]
    # Durations are read in minutes and hours.
    unit = 1.0 if whole else next((u for u in (3600.0, 60.0) if most >= 2 * u), 1.0)
    each = most / unit / TICKS
    base = 10.0 ** floor(log10(each))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= each * 0.999)
    if whole:
        step = max(1.0, float(round(step)))
    number = max(1, ceil(most / unit / step - 1e-9))
    return [i * step * unit for i in range(number + 1)]


def along_time(
    steps: Sequence[int],
    step_ms: int,
    *,
    lines: Sequence[Series],
    stack: Sequence[Series] = (),
    show: Show = duration,
    width: int,
) -> str:
    """Bars on top of each other and lines over them, along time; their numbers on hovering."""
    sums = [sum(one.values[i] or 0 for one in stack) for i in range(len(steps))]
    found = [value for one in lines for value in one.values if value is not None]
    ticks = ticks_to(max([*sums, *found], default=0), whole=show is count)
    top, slot = ticks[-1], (width - LEFT - RIGHT) / max(1, len(steps))
    drawn = [*_axes(steps, step_ms, [(_y(value, top), show(value)) for value in ticks], width)]
    for i in range(len(steps)):
        base = 0.0
        for one in stack:
            value = one.values[i] or 0
            if value:
                y = _y(base + value, top)
                height = max(_y(base, top) - y, 0.75)
                drawn.append(_rect(one.style, LEFT + (i + 0.12) * slot, y, slot * 0.76, height))
            base += value
    drawn += [_path(one, slot, top) for one in lines]
    for i, at in enumerate(steps):
        told = [
            f"{one.name} {show(number)}"
            for one in (*lines, *stack)
            if (number := one.values[i]) is not None
        ]
        hint = f"{full_moment(at)}: {', '.join(told) or 'nothing'}"
        drawn.append(_rect("hover", LEFT + i * slot, TOP, slot, HEIGHT - TOP - BOTTOM, hint))
    return _svg(drawn, width, HEIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _path(one: Series, slot: float, top: float) -> str:
    """A line through the numbers that are there, with dots where a number stands alone."""
    drawn = dots = ""
    around = [None, *one.values, None]
    for i, (before, value, after) in enumerate(zip(around, one.values, around[2:], strict=False)):
        if value is None:
            continue
        x, y = LEFT + (i + 0.5) * slot, _y(value, top)
        drawn += f"{'M' if before is None else 'L'}{x:.1f} {y:.1f} "
        if before is None and after is None:
            dots += f'<circle class="{one.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    return f'<path class="line {one.style}" d="{drawn.strip()}"/>{dots}'


def _axes(
    steps: Sequence[int], step_ms: int, ticks: Sequence[tuple[float, str]], width: int
) -> Iterator[str]:
    """Lines at the ticks, each given by its height and its text, and labels of the steps."""
    for y, text in ticks:
        yield f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text("tick", LEFT - 8, y + 3.5, text, anchor="end")
    slot = (width - LEFT - RIGHT) / max(1, len(steps))
    for i in range(0, len(steps), max(1, -(-len(steps) // LABELS))):
        x = LEFT + (i + 0.5) * slot
        if not i or x <= width - RIGHT - 18:
            yield _text("tick", x, HEIGHT - 8, moment(steps[i], step_ms), anchor="middle")


def bars(rows: Sequence[Bar], *, width: int, names: int) -> str:
    """Names, in a column of that width, each with a bar of parts (style, number) and a note."""
    top = max((sum(value for _, value in parts) for _, parts, _ in rows), default=0) or 1
    space = width - names - NOTE_WIDTH
    drawn = []
    for i, (name, parts, note) in enumerate(rows):
        y, x = i * ROW, float(names)
        short = name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"
        drawn.append(_text("name", x - 10, y + 17, short, anchor="end", hint=name))
        for style, value in parts:
            length = space * value / top
            if value:
                drawn.append(_rect(style, x, y + 5, max(length, 1.5), 16))
            x += length
        drawn.append(_text("value", x + 8, y + 17, note))
    return _svg(drawn, width, max(ROW, ROW * len(rows)))


def _svg(drawn: Sequence[str], width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(drawn)}</svg>'


def _rect(style: str, x: float, y: float, width: float, height: float, hint: str = "") -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
        f'rx="1">{_title(hint)}</rect>'
    )


def _text(
    style: str, x: float, y: float, text: str, *, anchor: str = "start", hint: str = ""
) -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(text)}{_title(hint)}</text>"
    )


def _title(hint: str) -> str:
    return f"<title>{escape(hint)}</title>" if hint else ""
