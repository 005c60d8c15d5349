"""Promise: a report's charts have axes that are easy to read, whatever the numbers."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from millstream.spark.pipelines import charts
from millstream.spark.pipelines.charts import Series


@pytest.mark.parametrize(
    ("most", "whole", "expected"),
    [
        (0, False, [0, 1]),
        (36, True, [0, 10, 20, 30, 40]),
        (1, True, [0, 1]),
        (3, True, [0, 1, 2, 3]),
        (0.009, False, [0, 0.0025, 0.005, 0.0075, 0.01]),
        (262, False, [0, 120, 240, 360]),
        (7_200, False, [0, 1_800, 3_600, 5_400, 7_200]),
    ],
)
def test_ticks_are_round(most: float, whole: bool, expected: list[float]) -> None:
    found = charts.ticks_to(most, whole=whole)
    assert found == pytest.approx(expected)
    assert found[-1] >= most


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0, "0"), (0.0123, "12.3 ms"), (17.1, "17.1 s"), (370, "6.17 min"),
     (9_000, "2.5 h"), (200_000, "2.31 d"), (float("nan"), "–")],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, expected: str) -> None:
    assert charts.duration(seconds) == expected


def test_every_chart_is_well_formed_also_with_nothing_in_it() -> None:
    steps = charts.steps_between(60_000, 300_000, 60_000)
    assert steps == [60_000, 120_000, 180_000, 240_000, 300_000]
    gaps = Series(name="<b>", style="wait", values=[1.0, None, 2.0, None, None])
    none = Series(name="none", style="done", values=[None] * 5)
    for drawn in (
        charts.along_time(steps, 60_000, lines=[gaps, none], width=500),
        charts.along_time(steps, 60_000, lines=[gaps], stack=[none], show=charts.count, width=500),
        charts.along_time([], 60_000, lines=[], width=500),
        charts.bars([], width=500, names=40),
        charts.bars([("<i>" * 50, [("failed", 0.0)], "1 & more")], width=500, names=230),
    ):
        ElementTree.fromstring(drawn)
    assert charts.along_time(steps, 60_000, lines=[gaps], width=500).count("<circle") == 2
