"""A report of Spark's in a browser: one file, whose charts are drawn by what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.spark.pipelines.page import page_of
from tests.unit.spark.test_report_charts import figures

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_charts_are_drawn_from_a_file(browser: Any, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(figures()), encoding="utf-8")
    complaints: list[str] = []
    asked: list[str] = []
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function("() => document.querySelectorAll('[data-chart] canvas').length === 3")
    page.wait_for_selector(".chart .legend b:has-text('0')")
    assert complaints == []
    assert asked == [file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
