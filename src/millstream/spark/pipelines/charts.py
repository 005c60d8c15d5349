"""Charts as inline SVG: drawn from numbers, coloured by the page's style, explained on hovering.

A chart takes its width from the page and its colours from classes, so it is readable in light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
NAME_WIDTH = 230
NAME_CHARS = 32
NOTE_WIDTH = 140


class Series(Struct, frozen=True, kw_only=True):
    """Numbers at the steps of a chart, under a name; None where there is none."""

    name: str
    style: str
    values: Sequence[float | None]


Show = Callable[[float], str]


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


def stacked(
    steps: Sequence[int], step_ms: int, series: Sequence[Series], line: Series, *, width: int
) -> str:
    """Bars on top of each other, and a line over them, along time."""
    sums = [sum(one.values[i] or 0 for one in series) for i in range(len(steps))]
    ticks = ticks_to(max([*sums, *(value or 0 for value in line.values)], default=0), whole=True)
    top = ticks[-1]
    slot = (width - LEFT - RIGHT) / max(1, len(steps))
    parts = []
    for i in range(len(steps)):
        base = 0.0
        for one in series:
            value = one.values[i] or 0
            if value:
                y = _y(base + value, top)
                height = max(_y(base, top) - y, 0.75)
                x, wide = LEFT + i * slot + slot * 0.12, slot * 0.76
                parts.append(
                    f'<rect class="{one.style}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                    f'height="{height:.1f}" rx="1"/>'
                )
                base += value
    parts.append(_path(line, slot, top))
    hints = [
        ", ".join(
            f"{one.name} {count(one.values[i] or 0)}" for one in (line, *series) if one.values[i]
        )
        for i in range(len(steps))
    ]
    return _frame(steps, step_ms, ticks, count, parts, hints, width)


def lines(steps: Sequence[int], step_ms: int, series: Sequence[Series], *, width: int) -> str:
    """Lines along time, of durations."""
    found = [value for one in series for value in one.values if value is not None]
    ticks = ticks_to(max(found, default=0))
    top = ticks[-1]
    slot = (width - LEFT - RIGHT) / max(1, len(steps))
    parts = [_path(one, slot, top) for one in series]
    hints = [
        ", ".join(
            f"{one.name} {duration(one.values[i])}" for one in series if one.values[i] is not None
        )
        for i in range(len(steps))
    ]
    return _frame(steps, step_ms, ticks, duration, parts, hints, width)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _path(one: Series, slot: float, top: float) -> str:
    """A line through the numbers that are there, with dots where a number stands alone."""
    points = [
        None if value is None else (LEFT + (i + 0.5) * slot, _y(value, top))
        for i, value in enumerate(one.values)
    ]
    drawn, dots, broken = [], [], True
    for i, point in enumerate(points):
        if point is None:
            broken = True
            continue
        drawn.append(f"{'M' if broken else 'L'}{point[0]:.1f} {point[1]:.1f}")
        after = points[i + 1] if i + 1 < len(points) else None
        if broken and after is None:
            dots.append(
                f'<circle class="{one.style}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2.5"/>'
            )
        broken = False
    return f'<path class="line {one.style}" d="{" ".join(drawn)}"/>' + "".join(dots)


def _frame(
    steps: Sequence[int],
    step_ms: int,
    ticks: Sequence[float],
    show: Show,
    parts: Sequence[str],
    hints: Sequence[str],
    width: int,
) -> str:
    """Axes around what was drawn, and what is said on hovering."""
    grid = []
    for value in ticks:
        y = _y(value, ticks[-1])
        grid.append(
            f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        grid.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{escape(show(value))}</text>'
        )
    slot = (width - LEFT - RIGHT) / max(1, len(steps))
    every = max(1, -(-len(steps) // LABELS))
    for i in range(0, len(steps), every):
        x = LEFT + (i + 0.5) * slot
        if x > width - RIGHT - 18 and i:
            continue
        grid.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{moment(steps[i], step_ms)}</text>"
        )
    over = [
        f'<rect class="hover" x="{LEFT + i * slot:.1f}" y="{TOP}" width="{slot:.2f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{full_moment(at)}: {escape(hints[i]) or "nothing"}'
        "</title></rect>"
        for i, at in enumerate(steps)
    ]
    return (
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">{"".join(grid)}{"".join(parts)}'
        f"{''.join(over)}</svg>"
    )


def columns(numbers: Sequence[tuple[str, float]], style: str, *, width: int) -> str:
    """A few bars side by side, each with its number on top."""
    top = max((value for _, value in numbers), default=0) or 1
    slot = (width - 2 * RIGHT) / max(4, len(numbers))
    parts = []
    for i, (name, value) in enumerate(numbers):
        y = TOP + 14 + (HEIGHT - TOP - 14 - BOTTOM) * (1 - value / top)
        x, wide = RIGHT + i * slot + slot * 0.15, slot * 0.7
        middle = x + wide / 2
        parts.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
            f'height="{max(HEIGHT - BOTTOM - y, 1):.1f}" rx="2"><title>{escape(name)}: {value:,.0f}'
            f'</title></rect><text class="value" x="{middle:.1f}" y="{y - 5:.1f}" '
            f'text-anchor="middle">{count(value)}</text>'
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]], str]], *, width: int) -> str:
    """Names, each with a bar of parts (style, number), and a note behind it."""
    top = max((sum(value for _, value in parts) for _, parts, _ in rows), default=0) or 1
    space = width - NAME_WIDTH - NOTE_WIDTH
    drawn = []
    for i, (name, parts, note) in enumerate(rows):
        y, x = i * ROW, float(NAME_WIDTH)
        short = name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"
        drawn.append(
            f'<text class="name" x="{NAME_WIDTH - 10}" y="{y + 17}" text-anchor="end">'
            f"{escape(short)}<title>{escape(name)}</title></text>"
        )
        for style, value in parts:
            length = space * value / top
            if value:
                drawn.append(
                    f'<rect class="{style}" x="{x:.1f}" y="{y + 5}" width="{max(length, 1.5):.1f}" '
                    'height="16" rx="2"/>'
                )
            x += length
        drawn.append(f'<text class="value" x="{x + 8:.1f}" y="{y + 17}">{escape(note)}</text>')
    height = max(ROW, ROW * len(rows))
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(drawn)}</svg>'
