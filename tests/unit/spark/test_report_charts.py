"""Promise: a report's page holds its numbers and all that shows them, and lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from xml.etree import ElementTree

import msgspec
import pytest

from millstream.spark.pipelines import charts
from millstream.spark.pipelines.charts import Series
from millstream.spark.pipelines.figures import Figures, Minute, QueueFigures, Reason
from millstream.spark.pipelines.page import chart_script, page_of, page_style

EVIL = "</script><script>alert(1)</script>"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0, "0"), (0.0123, "12.3 ms"), (17.1, "17.1 s"), (370, "6.17 min"),
     (9_000, "2.5 h"), (200_000, "2.31 d"), (float("nan"), "–")],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, expected: str) -> None:
    assert charts.duration(seconds) == expected


def test_a_chart_has_a_column_for_each_series_and_only_numbers_in_it() -> None:
    steps = charts.steps_between(60_000, 300_000, 60_000)
    assert steps == [60_000, 120_000, 180_000, 240_000, 300_000]
    gaps = Series(label="<b>", color="wait", values=[1.0, None, float("nan"), float("inf"), 2.0])
    none = Series(label="none", color="done", values=[None] * 5, bars=True)
    found = charts.along_time(steps, [gaps, none], unit="s")
    assert found.times == [60, 120, 180, 240, 300]
    assert found.columns == [[1.0, None, None, None, 2.0], [None] * 5]
    assert found.series == [
        {"label": "<b>", "unit": "s", "color": "var(--wait)"},
        {"label": "none", "unit": "s", "color": "var(--done)", "bars": True},
    ]


def test_bars_are_well_formed_also_with_nothing_in_them() -> None:
    for drawn in (
        charts.bars([]),
        charts.bars([("<i>" * 50, [("failed", 0.0)], "1 & more")]),
        charts.bars([("a", [("again", 1.0), ("failed", 3.0)], "4"), ("b", [("again", 2.0)], "2")]),
    ):
        ElementTree.fromstring(drawn)
    assert re.findall(r"width:([\d.]+)%", drawn) == ["17.50", "52.50", "35.00"]


def figures() -> Figures:
    """A report of one queue, whose every text is hostile."""
    queue = QueueFigures(
        queue=EVIL,
        messages=3,
        attempts=4,
        done=2,
        failed=1,
        in_flight=0,
        available=1,
        tries={1: 2, 2: 1},
        minutes=[Minute(at_ms=60_000, arrived=3, done=1), Minute(at_ms=180_000, failed=1, again=1)],
        reasons=[Reason(reason=EVIL, attempts=2, messages=1, failed=1, last_ms=180_000)],
        slices=[],
    )
    return Figures(
        store=EVIL, made_ms=0, first_ms=60_000, last_ms=180_000, step_ms=60_000, queues=[queue],
        messages=3, attempts=4, done=2, failed=1,
    )  # fmt: skip


def test_the_page_runs_its_own_script_alone() -> None:
    page = page_of(figures())
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert [kind for kind, _ in scripts] == [
        ' type="application/json" id="figures"',
        ' type="module"',
    ]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    found = msgspec.json.decode(scripts[0][1])["charts"]
    assert len(found) == page.count("data-chart=") == 3
    assert found[0]["columns"][0] == [1, 0, 0]
    assert "alert(1)</script>" not in page


def test_the_script_has_nothing_left_to_import() -> None:
    assert not re.search(r"^(import|export)\b", chart_script(), re.MULTILINE)
    assert "</script" not in chart_script()
    assert "</style" not in page_style()
