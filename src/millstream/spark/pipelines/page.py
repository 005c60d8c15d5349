"""The report's page: a single HTML file.

Readers open a report from a disk or a mail, without a server. So the file contains the style and the
chart code of the server's pages (`millstream/web`), and its policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby

import msgspec

from millstream.spark.pipelines import charts
from millstream.spark.pipelines.charts import Chart, Series, count, duration, full_moment
from millstream.spark.pipelines.figures import Fared, Figures, HeaderSlice, Minute, QueueFigures

QUEUES_MAX = 25
"""The most queues with charts. The table has the numbers of all queues."""
TRIES_MAX = 10

_IMPORT = re.compile(r"^import .*;$", re.MULTILINE)
_EXPORT = re.compile(r"^export (default \w+;$)?", re.MULTILINE)

_BEGIN = """
const { charts } = JSON.parse(document.getElementById("figures").textContent);
for (const place of document.querySelectorAll("[data-chart]")) {
  const { times, columns, ...about } = charts[place.dataset.chart];
  chart(place, { ...about, window_s: Infinity, utc: true }).set(times, columns);
}
"""
"""Draws each chart of the page, from the numbers that the page holds."""

_STYLE = """
:root{--done:var(--chart-2);--failed:var(--chart-5);--again:var(--chart-3);--arrived:var(--chart-1);
--wait:var(--chart-1);--wait99:color-mix(in srgb,var(--chart-1) 45%,var(--card));--work:var(--chart-4);
--work99:color-mix(in srgb,var(--chart-4) 45%,var(--card));--tries:var(--chart-1)}
main{max-width:1120px;margin:0 auto;padding:32px clamp(12px,3vw,24px) 64px}
.figures{margin:20px 0}
.sub{color:var(--soft);font-size:.85rem;margin:0 0 .5rem}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:16px}
.card h3{margin:0}
.wide{grid-column:1/-1}
.numbers td,.numbers th{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;padding:.45rem .6rem}
.numbers td:first-child,.numbers th:first-child{text-align:left;white-space:normal;min-width:120px;padding-left:0}
.bars td{border:0;padding:.2rem .6rem .2rem 0;vertical-align:middle}
.bars td:last-child{width:65%}
.bars i{display:inline-block;height:1rem;vertical-align:middle}
.bars span{margin-left:.5rem;font-size:.85rem}
.share{display:inline-block;width:64px;height:8px;border-radius:4px;background:var(--grid);
margin-left:8px;vertical-align:1px;overflow:hidden}
.share i{display:block;height:100%;background:var(--done)}
.key{display:flex;gap:.9rem;font-size:.82rem;color:var(--soft);margin-bottom:.3rem}
.key i{display:inline-block;width:.65rem;height:.65rem;border-radius:.2rem;margin-right:.35rem}
footer{color:var(--soft);font-size:.85rem;margin-top:40px}
@media (max-width:640px){main{padding-top:16px}h1,h2,h3{overflow-wrap:anywhere}.key{flex-wrap:wrap}
.card{overflow-x:auto}.numbers td,.numbers th{padding:.35rem .4rem;font-size:.82rem}.share{display:none}
.numbers td:first-child,.numbers th:first-child{min-width:84px;overflow-wrap:anywhere}
.bars td:first-child{overflow-wrap:anywhere}}
"""
"""Additions to the style of the server's pages, and the meanings of its colours in a report."""

_NO_SCRIPT = (
    '<noscript><p class="notice">Its charts are drawn by a script, which this viewer does not run; '
    "the tables say the same in numbers.</p></noscript>"
)


def page_of(figures: Figures) -> str:
    """The page, as text."""
    drawn: list[Chart] = []
    shown = [queue for queue in figures.queues if queue.messages][:QUEUES_MAX]
    numbers = {queue.queue: number for number, queue in enumerate(shown)}
    body = [_head(figures), _table(figures.queues, numbers)]
    body += [_section(figures, queue, number, drawn) for number, queue in enumerate(shown)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{script_policy()}">'
        f"<title>Queues of {escape(figures.store)}</title>"
        f"<style>{page_style()}{_STYLE}</style></head>"
        f"<body><main>{_NO_SCRIPT}{''.join(body)}{_foot(figures)}</main>"
        f'<script type="application/json" id="figures">{_data(drawn)}</script>'
        f'<script type="module">{chart_script()}</script></body></html>\n'
    )


def _data(drawn: Sequence[Chart]) -> str:
    """Encode the numbers of all charts so that no text in them can end the surrounding element."""
    return msgspec.json.encode({"charts": drawn}).decode().replace("<", "\\u003c")


def _head(figures: Figures) -> str:
    spans = ""
    if figures.first_ms is not None and figures.last_ms is not None:
        spans = f", from {full_moment(figures.first_ms)} to {full_moment(figures.last_ms)} UTC"
    ended = figures.done + figures.failed
    cards = [
        ("messages worked on", count(figures.messages)),
        ("done", count(figures.done)),
        ("failed", count(figures.failed)),
        ("of those ended, done", f"{100 * figures.done / ended:.4g} %" if ended else "–"),
        ("attempts", count(figures.attempts)),
        ("waiting now", count(sum(queue.available for queue in figures.queues))),
    ]
    return (
        f'<h1>How the queues fared</h1><p class="sub">{escape(figures.store)}{spans}</p>'
        f"{_cards(cards)}"
    )


def _cards(cards: Sequence[tuple[str, str]]) -> str:
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in cards
    )
    return f'<div class="figures">{inside}</div>'


def _table(queues: Sequence[QueueFigures], shown: dict[str, int]) -> str:
    rows = []
    for figures in queues:
        name = escape(figures.queue)
        if figures.queue in shown:
            name = f'<a href="#q{shown[figures.queue]}">{name}</a>'
        rows.append(_row(name, figures))
    return f'<div class="card scroll">{_numbers("queue", rows)}</div>'


def _numbers(title: str, rows: Sequence[str]) -> str:
    titles = (
        "messages", "done", "failed", "attempts each", "waited, median", "99 %", "worked, median",
        "99 %",
    )  # fmt: skip
    heads = "".join(f"<th>{name}</th>" for name in titles)
    return (
        f'<table class="numbers"><thead><tr><th>{escape(title)}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(name: str, fared: Fared) -> str:
    share = f"{100 * fared.done / fared.messages:.0f}" if fared.messages else "0"
    cells = (
        f"{fared.messages:,}",
        f'{fared.done:,}<span class="share"><i style="width:{share}%"></i></span>',
        f"{fared.failed:,}",
        f"{fared.attempts / fared.messages:.2f}" if fared.messages else "–",
        *(duration(took) for two in (fared.wait, fared.work) for took in (two.p50, two.p99)),
    )
    return f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _section(figures: Figures, queue: QueueFigures, number: int, drawn: list[Chart]) -> str:
    assert figures.first_ms is not None
    assert figures.last_ms is not None
    steps = charts.steps_between(figures.first_ms, figures.last_ms, figures.step_ms)
    by_time = {minute.at_ms: minute for minute in queue.minutes}
    minutes = [by_time.get(at, Minute(at_ms=at)) for at in steps]
    sub = f"messages that arrived and attempts that ended, per {_step(figures.step_ms)}"
    panels = [
        _chart("Throughput", sub, _throughput(steps, minutes), drawn, wide=True),
        _chart("Waiting", "from append to first claim", _latency("wait", steps, minutes), drawn),
        _chart(
            "Working", "from claim to the attempt's end", _latency("work", steps, minutes), drawn
        ),
        _tries(queue),
    ]
    if queue.reasons:
        panels.append(_reasons(queue))
    panels += [
        _slices(header, list(values))
        for header, values in groupby(queue.slices, lambda s: s.header)
    ]
    cards = [
        ("messages", count(queue.messages)),
        ("done", count(queue.done)),
        ("failed", count(queue.failed)),
        ("in flight", count(queue.in_flight)),
        ("waiting now", count(queue.available)),
        ("waited, median", duration(queue.wait.p50)),
        ("worked, median", duration(queue.work.p50)),
    ]
    return (
        f'<h2 id="q{number}">{escape(queue.queue)}</h2>{_cards(cards)}'
        f'<div class="grid2">{"".join(panels)}</div>'
    )


def _panel(title: str, sub: str, inside: str, *, wide: bool = False) -> str:
    style = "card wide" if wide else "card"
    return f'<div class="{style}"><h3>{escape(title)}</h3><p class="sub">{escape(sub)}</p>{inside}</div>'


def _chart(title: str, sub: str, chart: Chart, drawn: list[Chart], *, wide: bool = False) -> str:
    """A panel with the place of a chart, which the script finds by its number."""
    drawn.append(chart)
    return _panel(title, sub, f'<div data-chart="{len(drawn) - 1}"></div>', wide=wide)


def _throughput(steps: Sequence[int], minutes: Sequence[Minute]) -> Chart:
    ended = [
        Series(
            label=label, color=name, values=[getattr(minute, name) for minute in minutes], bars=True
        )
        for label, name in (("done", "done"), ("tried again", "again"), ("failed", "failed"))
    ]
    arrived = Series(
        label="arrived", color="arrived", values=[minute.arrived for minute in minutes]
    )
    return charts.along_time(steps, [*ended, arrived])


def _step(step_ms: int) -> str:
    for size, name in (
        (86_400_000, "day"),
        (3_600_000, "hour"),
        (60_000, "minute"),
        (1_000, "second"),
    ):
        if step_ms >= size:
            number = step_ms // size
            return name if number == 1 else f"{number} {name}s"
    return f"{step_ms} ms"


def _latency(kind: str, steps: Sequence[int], minutes: Sequence[Minute]) -> Chart:
    series = [
        Series(label=label, color=color, values=[getattr(minute, column) for minute in minutes])
        for label, color, column in (
            ("median", kind, f"{kind}_p50"),
            ("99 in 100", f"{kind}99", f"{kind}_p99"),
        )
    ]
    return charts.along_time(steps, series, unit="s")


def _tries(queue: QueueFigures) -> str:
    sizes: dict[str, int] = {}
    for number, size in queue.tries.items():
        name = str(number) if number < TRIES_MAX else f"{TRIES_MAX}+"
        sizes[name] = sizes.get(name, 0) + size
    rows = [(name, [("tries", float(size))], count(size)) for name, size in sizes.items()]
    inside = charts.bars(rows)
    return _panel("Attempts", "how many messages took so many", inside, wide=not queue.reasons)


def _reasons(queue: QueueFigures) -> str:
    rows = []
    for reason in queue.reasons:
        segments = [
            ("again", float(reason.attempts - reason.failed)),
            ("failed", float(reason.failed)),
        ]
        note = f"{count(reason.attempts)} ({count(reason.messages)} messages)"
        rows.append((reason.reason, segments, note))
    key = "".join(
        f'<span><i style="background:var(--{color})"></i>{name}</span>'
        for name, color in (("tried again", "again"), ("failed for good", "failed"))
    )
    inside = f'<div class="key">{key}</div>{charts.bars(rows)}'
    return _panel("Why attempts went wrong", "attempts by reason", inside)


def _slices(header: str, slices: Sequence[HeaderSlice]) -> str:
    rows = [
        _row(
            "<i>without it, or forgotten by its log</i>"
            if slice_.value is None
            else escape(slice_.value or "(empty)"),
            slice_,
        )
        for slice_ in slices
    ]
    inside = f'<div class="scroll">{_numbers(header, rows)}</div>'
    return _panel(f"By {header}", "the header's most frequent values", inside, wide=True)


def _foot(figures: Figures) -> str:
    return (
        f"<footer>Made by millstream on {full_moment(figures.made_ms)} UTC. Messages that are done "
        "are counted as long as their queue remembers them; those that nobody has claimed yet stand "
        "only under “waiting now”.</footer>"
    )


@cache
def page_style() -> str:
    """Return the style of the server's pages and of their charts."""
    return _file("look.css") + _file("vendor/uplot.css")


@cache
def chart_script() -> str:
    """Return the script that draws the charts, as a single module without imports."""
    modules = (_file("vendor/uplot.js"), _file("charts.js"))
    plain = [_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules]
    return "".join((*plain, _BEGIN))


def script_policy() -> str:
    """Return a policy that allows this script and the page's styles, and no other source."""
    digest = base64.b64encode(hashlib.sha256(chart_script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _file(path: str) -> str:
    return (resources.files("millstream") / "web" / path).read_text(encoding="utf-8")
