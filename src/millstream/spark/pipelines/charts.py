"""Charts of a report: numbers along time, which the page's script draws, and bars beside names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from math import floor, isfinite

from msgspec import Struct

Bar = tuple[str, Sequence[tuple[str, float]], str]
"""A name, the bar's parts as (colour, number), and a note behind it."""

BAR_PERCENT = 70
"""The share of the cell that the longest bar takes; the note follows the bar."""


class Series(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Named numbers at the steps of a chart; None for a step without a number."""

    label: str
    color: str
    values: Sequence[float | None]
    bars: bool = False
    """Bars, on top of those before, rather than a line."""


class Chart(Struct, frozen=True, kw_only=True):
    """Series along time, as `web/charts.js` takes them."""

    series: list[dict[str, str | bool]]
    times: list[float]
    """Seconds since the epoch."""
    columns: list[Sequence[float | None]]


def along_time(steps: Sequence[int], series: Sequence[Series], *, unit: str = "") -> Chart:
    """A chart of series over steps, given by their beginnings in milliseconds."""
    return Chart(
        series=[
            {
                "label": line.label,
                "unit": unit,
                "color": f"var(--{line.color})",
                **({"bars": True} if line.bars else {}),
            }
            for line in series
        ],
        times=[at / 1000 for at in steps],
        columns=[[_finite(value) for value in line.values] for line in series],
    )


def bars(rows: Sequence[Bar]) -> str:
    """Names, each with a bar of parts (colour, number) and a note."""
    top = max((sum(value for _, value in segments) for _, segments, _ in rows), default=0) or 1
    drawn = []
    for name, segments, note in rows:
        shares = "".join(
            f'<i style="width:{BAR_PERCENT * value / top:.2f}%;background:var(--{color})"></i>'
            for color, value in segments
            if value
        )
        cells = f"<td>{escape(name)}</td><td>{shares}<span>{escape(note)}</span></td>"
        drawn.append(f"<tr>{cells}</tr>")
    return f'<table class="bars">{"".join(drawn)}</table>'


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


def full_moment(at_ms: int) -> str:
    """A time, to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def steps_between(first_ms: int, last_ms: int, step_ms: int) -> list[int]:
    """Return the start of every step between two times."""
    first = first_ms // step_ms * step_ms
    return list(range(first, max(first, last_ms) + 1, step_ms))


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else value
