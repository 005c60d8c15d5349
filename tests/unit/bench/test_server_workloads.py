"""The server's workloads run, and report what the documentation says; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.bench import server as workloads

QUICK = [name for name in workloads.SUITE.workloads if name != "idle_sockets"]


@pytest.mark.embedded
def test_every_workload_reports_the_documented_fields(tmp_path: Path) -> None:
    started: list[str] = []
    rows = workloads.SUITE.run(QUICK, directory=tmp_path, seconds_each=0.1, started=started.append)
    found = [msgspec.to_builtins(row) for row in rows]
    assert started == QUICK == [row["workload"] for row in found]
    for row in found:
        assert {"payload_bytes", "per_second", "p50_ms", "p99_ms", "required", "passed"} <= set(row)
        assert row["per_second"] > 0


@pytest.mark.embedded
def test_a_slower_disk_makes_each_publish_wait(tmp_path: Path) -> None:
    names = ["socket_publish_one", "socket_publish_connections"]
    settings = {"seconds_each": 0.2, "sync_delay_ms": 5.0}
    rows = workloads.SUITE.run(names, directory=tmp_path, started=lambda _: None, **settings)
    one, many = rows
    assert one.sync_delay_ms == many.sync_delay_ms == 5.0
    assert one.p50_ms >= 5.0
    assert many.details["server_cpu_us"] >= 0
