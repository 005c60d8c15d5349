"""`millstream bench spark` runs, and reports what the documentation says; how fast is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.bench import spark as workloads

BESIDE = {"spark_read", "spark_read_1k", "spark_count", "spark_agg", "spark_group"}
BESIDE |= {"spark_write", "spark_scale"}
"""Workloads that a peer takes turns with."""
WITHOUT_GOAL = {"spark_first_row"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # every workload, and more than one Java
@pytest.mark.usefixtures("no_spark")
def test_every_workload_reports_the_documented_fields(tmp_path: Path) -> None:
    names = list(workloads.SUITE.workloads)
    command = [sys.executable, "-m", "millstream", "bench", "spark", "--json"]
    command += ["--records", "2000", "--seconds", "0.1", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["workload"] for row in rows] == names
    for name, row in zip(names, rows, strict=True):
        assert f"{name} …" in done.stderr.splitlines()
        assert {"payload_bytes", "per_second", "p50_ms"} <= set(row)
        assert {"required", "passed"} <= set(row) or name in WITHOUT_GOAL
        assert row["per_second"] > 0
        assert row["details"]["turns"] >= 1
        assert {"beside_per_second", "ratio"} <= set(row) or name not in BESIDE
        assert row["void"].endswith("turns are too few; give it a second or more")
    assert not list(tmp_path.iterdir())
