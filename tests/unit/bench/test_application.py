"""The benchmark of the application's own tables: its workloads run, and every message arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.bench import core


@pytest.mark.parametrize("name", ["sql_begin", "inbox", "inbox_single"])
@pytest.mark.parametrize("sync_delay_ms", [0, 0.1])
def test_a_workload_reports_a_ratio(name: str, sync_delay_ms: float, tmp_path: Path) -> None:
    (row,) = core.SUITE.run(
        [name],
        directory=tmp_path,
        seconds_each=0.02,
        sync_delay_ms=sync_delay_ms,
        started=lambda _: None,
    )
    assert row.workload == name
    assert row.per_second > 0
    assert row.beside_per_second
    assert row.ratio
    assert row.required


def test_the_latency_of_the_inbox_is_reported_with_its_p95(tmp_path: Path) -> None:
    (row,) = core.SUITE.run(
        ["inbox_latency"],
        directory=tmp_path,
        seconds_each=0.02,
        sync_delay_ms=0,
        started=lambda _: None,
    )
    assert row.details["p95_ms"] > 0
    assert row.required == "p95 ≤ 50 ms"
