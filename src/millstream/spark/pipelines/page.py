"""The report's page: one HTML file that needs nothing else, neither network nor script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from millstream.spark.pipelines import charts
from millstream.spark.pipelines.charts import Series, count, duration, full_moment
from millstream.spark.pipelines.figures import Fared, Figures, HeaderSlice, Minute, QueueFigures

QUEUES_MAX = 25
"""Queues with charts of their own; of all others the page has the numbers."""
TRIES_MAX = 10
TRIES_WIDTH, REASONS_WIDTH = 40, 230
"""Of the names beside bars."""

_STYLE = """
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5b6677;
--edge:#e2e6ec;--grid:#eaedf2;--done:#2a9d78;--failed:#d64550;--again:#e5a23d;--arrived:#3f6fd8;
--wait:#3f6fd8;--wait99:#9db7f0;--work:#7a4fc9;--work99:#c4aef0;--tries:#3f6fd8}
@media (prefers-color-scheme:dark){:root{--ground:#11151c;--card:#191f29;--ink:#e7ebf2;
--soft:#96a2b5;--edge:#2a3240;--grid:#242c39;--done:#3fbf95;--failed:#ef6a73;--again:#eab75a;
--arrived:#7ba2ff;--wait:#7ba2ff;--wait99:#5673bd;--work:#b08cf5;--work99:#7a5fc0;--tries:#7ba2ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;margin:0;letter-spacing:-.01em}
h2{font-size:20px;margin:44px 0 12px;overflow-wrap:anywhere}
h3{font-size:14px;margin:0 0 2px;font-weight:600}
p.sub,.sub{color:var(--soft);margin:2px 0 0;font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:12px;margin:20px 0}
.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 14px}
.card b{display:block;font-size:22px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25;
white-space:nowrap}
.card span{color:var(--soft);font-size:12.5px}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px}
.panel{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px 16px;
min-width:0;overflow:hidden}
.wide{grid-column:1/-1}
svg{display:block;width:100%;height:auto;margin-top:8px;overflow:visible}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft);
font-variant-numeric:tabular-nums}
svg .value,svg .name{fill:var(--ink);font-size:12px}
svg line.grid{stroke:var(--grid);stroke-width:1}
svg .hover{fill:transparent}svg .hover:hover{fill:var(--soft);fill-opacity:.14}
svg .line{fill:none!important;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;color:var(--soft);font-size:12.5px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px;
background:currentColor;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--edge);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:12.5px}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:120px}
tr:last-child td{border-bottom:0}
a{color:inherit;text-decoration-color:var(--soft);text-underline-offset:3px}
.share{display:inline-block;width:64px;height:8px;border-radius:4px;background:var(--grid);
margin-left:8px;vertical-align:1px;overflow:hidden}
.share i{display:block;height:100%;background:var(--done)}
footer{color:var(--soft);font-size:12.5px;margin-top:40px}
"""
_COLOURED = ("done", "failed", "again", "arrived", "wait", "wait99", "work", "work99", "tries")


def page_of(figures: Figures) -> str:
    """The page, as text."""
    shown = [one for one in figures.queues if one.messages][:QUEUES_MAX]
    body = [_head(figures), _table(figures.queues, {one.queue: i for i, one in enumerate(shown)})]
    body += [_section(figures, one, number) for number, one in enumerate(shown)]
    coloured = "".join(
        f"svg .{name}{{fill:var(--{name})}}svg .line.{name}{{stroke:var(--{name})}}"
        f".legend .{name}{{color:var(--{name})}}"
        for name in _COLOURED
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>Queues of {escape(figures.store)}</title><style>{_STYLE}{coloured}</style></head>"
        f"<body><main>{''.join(body)}{_foot(figures)}</main></body></html>\n"
    )


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
        ("waiting now", count(sum(one.available for one in figures.queues))),
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
    return f'<div class="cards">{inside}</div>'


def _table(queues: Sequence[QueueFigures], shown: dict[str, int]) -> str:
    rows = []
    for one in queues:
        name = escape(one.queue)
        if one.queue in shown:
            name = f'<a href="#q{shown[one.queue]}">{name}</a>'
        rows.append(_row(name, one))
    return f'<div class="panel scroll">{_numbers("queue", rows)}</div>'


def _numbers(title: str, rows: Sequence[str]) -> str:
    titles = (
        "messages", "done", "failed", "attempts each", "waited, median", "99 %", "worked, median",
        "99 %",
    )  # fmt: skip
    heads = "".join(f"<th>{name}</th>" for name in titles)
    return (
        f"<table><thead><tr><th>{escape(title)}</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(name: str, one: Fared) -> str:
    share = f"{100 * one.done / one.messages:.0f}" if one.messages else "0"
    cells = (
        f"{one.messages:,}",
        f'{one.done:,}<span class="share"><i style="width:{share}%"></i></span>',
        f"{one.failed:,}",
        f"{one.attempts / one.messages:.2f}" if one.messages else "–",
        *(duration(took) for two in (one.wait, one.work) for took in (two.p50, two.p99)),
    )
    return f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _section(figures: Figures, one: QueueFigures, number: int) -> str:
    assert figures.first_ms is not None
    assert figures.last_ms is not None
    steps = charts.steps_between(figures.first_ms, figures.last_ms, figures.step_ms)
    by_time = {minute.at_ms: minute for minute in one.minutes}
    found = [by_time.get(at, Minute(at_ms=at)) for at in steps]
    step_ms = figures.step_ms
    panels = [
        _throughput(steps, step_ms, found),
        _latency("Waiting", "from append to first claim", "wait", steps, step_ms, found),
        _latency("Working", "from claim to the attempt's end", "work", steps, step_ms, found),
        _tries(one),
    ]
    if one.reasons:
        panels.append(_reasons(one))
    panels += [
        _slices(header, list(some)) for header, some in groupby(one.slices, lambda s: s.header)
    ]
    cards = [
        ("messages", count(one.messages)),
        ("done", count(one.done)),
        ("failed", count(one.failed)),
        ("in flight", count(one.in_flight)),
        ("waiting now", count(one.available)),
        ("waited, median", duration(one.wait.p50)),
        ("worked, median", duration(one.work.p50)),
    ]
    return (
        f'<h2 id="q{number}">{escape(one.queue)}</h2>{_cards(cards)}'
        f'<div class="grid2">{"".join(panels)}</div>'
    )


def _panel(title: str, sub: str, inside: str, *, wide: bool = False) -> str:
    style = "panel wide" if wide else "panel"
    return f'<div class="{style}"><h3>{escape(title)}</h3><p class="sub">{escape(sub)}</p>{inside}</div>'


def _legend(series: Sequence[tuple[str, str]]) -> str:
    inside = "".join(
        f'<span><i class="{style}"></i>{escape(name)}</span>' for name, style in series
    )
    return f'<div class="legend">{inside}</div>'


def _throughput(steps: Sequence[int], step_ms: int, minutes: Sequence[Minute]) -> str:
    series = [
        Series(name=name, style=style, values=[getattr(one, style) for one in minutes])
        for name, style in (("done", "done"), ("tried again", "again"), ("failed", "failed"))
    ]
    line = Series(name="arrived", style="arrived", values=[one.arrived for one in minutes])
    legend = _legend([(one.name, one.style) for one in (line, *series)])
    sub = f"messages that arrived and attempts that ended, per {_step(step_ms)}"
    drawn = charts.along_time(
        steps, step_ms, lines=[line], stack=series, show=count, width=charts.WIDE
    )
    return _panel("Throughput", sub, legend + drawn, wide=True)


def _step(step_ms: int) -> str:
    for size, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if step_ms >= size:
            number = step_ms // size
            return name if number == 1 else f"{number} {name}s"
    return f"{step_ms} ms"


def _latency(
    title: str, sub: str, kind: str, steps: Sequence[int], step_ms: int, minutes: Sequence[Minute]
) -> str:
    series = [
        Series(name=name, style=style, values=[getattr(one, column) for one in minutes])
        for name, style, column in (
            ("99 in 100", f"{kind}99", f"{kind}_p99"),
            ("median", kind, f"{kind}_p50"),
        )
    ]
    legend = _legend([(one.name, one.style) for one in reversed(series)])
    drawn = charts.along_time(steps, step_ms, lines=series, width=charts.HALF)
    return _panel(title, sub, legend + drawn)


def _tries(one: QueueFigures) -> str:
    found: dict[str, int] = {}
    for number, size in one.tries.items():
        name = str(number) if number < TRIES_MAX else f"{TRIES_MAX}+"
        found[name] = found.get(name, 0) + size
    rows = [(name, [("tries", float(size))], count(size)) for name, size in found.items()]
    width = charts.HALF if one.reasons else charts.WIDE
    drawn = charts.bars(rows, width=width, names=TRIES_WIDTH)
    return _panel("Attempts", "how many messages took so many", drawn, wide=not one.reasons)


def _reasons(one: QueueFigures) -> str:
    rows = []
    for reason in one.reasons:
        parts = [
            ("again", float(reason.attempts - reason.failed)),
            ("failed", float(reason.failed)),
        ]
        note = f"{count(reason.attempts)} ({count(reason.messages)} messages)"
        rows.append((reason.reason, parts, note))
    legend = _legend([("tried again", "again"), ("failed for good", "failed")])
    drawn = charts.bars(rows, width=charts.HALF, names=REASONS_WIDTH)
    return _panel("Why attempts went wrong", "attempts by reason", legend + drawn)


def _slices(header: str, slices: Sequence[HeaderSlice]) -> str:
    rows = [
        _row(
            "<i>without it, or forgotten by its log</i>"
            if one.value is None
            else escape(one.value or "(empty)"),
            one,
        )
        for one in slices
    ]
    inside = f'<div class="scroll">{_numbers(header, rows)}</div>'
    return _panel(f"By {header}", "the header's most frequent values", inside, wide=True)


def _foot(figures: Figures) -> str:
    return (
        f"<footer>Made by millstream on {full_moment(figures.made_ms)} UTC. Messages that are done "
        "are counted as long as their queue remembers them; those that nobody has claimed yet stand "
        "only under “waiting now”.</footer>"
    )
