"""The workloads of jobs run, and report what the documentation says; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.bench import jobs as workloads


def test_every_workload_reports_its_figures(tmp_path: Path) -> None:
    started: list[str] = []
    names = list(workloads.SUITE.workloads)
    rows = workloads.SUITE.run(names, directory=tmp_path, seconds_each=0.05, started=started.append)
    found = {row["workload"]: row for row in map(msgspec.to_builtins, rows)}
    assert (
        started
        == names
        == list(found)
        == [
            "jobs_put",
            "jobs_run",
            "jobs_latency",
            "jobs_limited",
            "jobs_schedules",
        ]
    )
    for row in found.values():
        assert row["per_second"] > 0
        assert row["required"]
    assert found["jobs_latency"]["details"]["across_p50_ms"] > 0
