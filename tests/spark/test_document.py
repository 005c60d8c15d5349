"""The snippets of docs/SPARK.md run, in order, in the session that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.doc_examples import examples_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).parents[2] / "docs" / "SPARK.md"
LAST = "\n## Pipelines"
"""From here on others look after the snippets."""


def test_the_snippets_of_the_source_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text(encoding="utf-8").split(LAST)[0]
    found = examples_in(text)
    assert len(found) >= 6
    names: dict[str, object] = {"spark": spark}
    for snippet in found:
        code = snippet.code.replace('"rows.db"', repr(str(tmp_path / "rows.db")))
        code = code.replace("'rows.db'", repr(str(tmp_path / "rows.db")))
        for name in ("checkpoint", "checkpoint-counts"):
            code = code.replace(f'"{name}"', repr(str(tmp_path / name)))
        exec(compile("\n" * (snippet.line - 1) + code, str(DOCUMENT), "exec"), names)
    for view in ("totals", "notes"):
        spark.catalog.dropTempView(view)
