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
