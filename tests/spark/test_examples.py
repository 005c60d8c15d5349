"""The examples for Spark run, and do what they say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"

pytestmark = pytest.mark.slow


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_every_minute_is_averaged_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("windows")
    example["main"](tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "4 averages of 12 measurements",
        "8 averages of 20 measurements",
    ]
    example["average"](spark, tmp_path / "windows.db", tmp_path / "checkpoint")
    with millstream.open(tmp_path / "windows.db") as ms:
        found = {
            (record.timestamp - example["BEGIN_MS"], record.key): record.json()
            for record in ms.log("averages").read()
        }
        assert len(found) == len(ms.log("averages")) == 8
        assert {key for _, key in found} == {b"north", b"south"}
        for (at_ms, key), value in found.items():
            mean = {b"north": 35, b"south": 7.5}[key] + at_ms / 60_000
            assert (value["degrees"], value["count"]) == (mean, 2)
        assert ms.log("measurements").cursor("averages").position() == 20


def test_a_field_that_is_added_is_seen_while_the_stream_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("evolving")["main"](tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "ann {'amount': 5, 'currency': 'EUR'}",
        "bo {'amount': 7, 'currency': 'SEK'}",
        "cy {'amount': 9, 'currency': 'EUR'}",
    ]


def test_the_walkthrough_puts_each_large_order_into_the_queue_once(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLSTREAM_WALKTHROUGH", str(tmp_path))
    load("walkthrough")
    told = capsys.readouterr().out
    assert "100 records" in told
    assert "|     fr|12000|" in told
    assert "|     de|37500|" in told
    worked = [line for line in told.splitlines() if line.startswith("[")]
    assert worked == ["[90, 91, 92, 93]", "[94, 95, 96, 97]", "[98, 99]"]
    assert told.splitlines()[-1] == "lag 0"
    load("walkthrough")
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]


@pytest.mark.usefixtures("no_spark")
def test_the_second_run_of_the_declarative_pipeline_takes_only_what_is_new(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for run in (1, 2):
        done = subprocess.run(
            [sys.executable, EXAMPLES / "declarative" / "run.py", tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{3 * run} orders, in the tables of ")
    files = sorted((tmp_path / "spark-warehouse" / "orders").glob("*.parquet"))
    runs = sorted(pq.read_table(file).column("offset").to_pylist() for file in files)
    assert runs == [[0, 1, 2], [3, 4, 5]]  # nothing was read twice
    (summed,) = (tmp_path / "spark-warehouse" / "revenue").glob("*.parquet")
    revenue = {row["country"]: row["total"] for row in pq.read_table(summed).to_pylist()}
    assert revenue == {"de": 90, "fr": 50, "it": 70}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*")), ids=lambda p: p.name)
def test_every_example_is_known_here(path: Path) -> None:
    assert path.stem in {"declarative", "evolving", "walkthrough", "windows", "__pycache__"}
