"""The operators' workloads run, and report their fields; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.bench import ops


def test_every_workload_reports_its_fields(tmp_path: Path) -> None:
    names = list(ops.SUITE.workloads)
    assert {"export", "import"} <= set(names)
    rows = ops.SUITE.run(
        ["export", "import"],
        directory=tmp_path,
        seconds_each=0.01,
        started=lambda name: None,
        records=1_500,
    )
    for row in map(msgspec.to_builtins, rows):
        assert row["per_second"] > 0
        assert row["required"] == "≥ 150,000/s"


def test_compaction_runs_beside_publishes(tmp_path: Path) -> None:
    (row,) = ops.SUITE.run(
        ["compact"],
        directory=tmp_path,
        seconds_each=0.01,
        started=lambda name: None,
        records=4_000,
    )
    assert row.details["returned_mb"] > 1
    assert row.per_second > 0
    assert row.required == "p99 < 3 x normal"
