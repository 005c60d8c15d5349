"""Object storage's workloads run, and report what the documentation says; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.bench import s3 as workloads


@pytest.mark.requires("s3")
def test_every_workload_reports_the_documented_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "SINGLES", 20)
    monkeypatch.setattr(workloads, "PRODUCERS", 5)
    monkeypatch.setattr(workloads, "DELAY_S", 0.001)
    started: list[str] = []
    names = list(workloads.SUITE.workloads)
    rows = workloads.SUITE.run(
        names, directory=tmp_path, seconds_each=0.05, started=started.append, records=3_000
    )
    found = {row["workload"]: row for row in map(msgspec.to_builtins, rows)}
    assert started == names == list(found)
    for row in found.values():
        assert {"payload_bytes", "per_second", "p50_ms", "p99_ms", "required", "passed"} <= set(row)
    assert found["s3_read"]["details"]["records"] == 3_000
    assert found["s3_latency"]["details"]["requests_per_1000"] > 0
