"""The look and the chart code of all pages (`millstream/web`), as texts that one file can hold.

A report is opened from a disk or a mail, where no server is. What a served page links, it has
inside.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

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


@cache
def style() -> str:
    """The style of pages, and of their charts."""
    return _file("look.css") + _file("vendor/uplot.css")


@cache
def script() -> str:
    """Return the script that draws the charts, as a single module without imports."""
    modules = (_file("vendor/uplot.js"), _file("charts.js"))
    plain = [_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules]
    return "".join((*plain, _BEGIN))


def policy() -> str:
    """Lets in that script and the page's styles, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _file(path: str) -> str:
    return (resources.files("millstream") / "web" / path).read_text(encoding="utf-8")
