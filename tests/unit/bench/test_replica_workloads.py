"""The replicas' workloads run, and report what the documentation says; how fast is not judged."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from millstream.bench import replica as workloads
from millstream.cli import app


def test_every_workload_reports_the_documented_fields(tmp_path: Path) -> None:
    started: list[str] = []
    names = list(workloads.SUITE.workloads)
    rows = workloads.SUITE.run(
        names, directory=tmp_path, seconds_each=0.05, started=started.append, records=2_500
    )
    found = {row["workload"]: row for row in map(msgspec.to_builtins, rows)}
    assert started == names == list(found)
    for row in found.values():
        assert {"payload_bytes", "per_second", "p50_ms", "p99_ms", "required", "passed"} <= set(row)
        assert row["per_second"] > 0
    assert found["sync_full"]["details"]["records"] == 2_500
    assert 100 < found["sync_full"]["details"]["bytes_per_record"] < 120
    assert 0 < found["sync_nothing"]["details"]["bytes_per_log"] < 1_000
    assert 0 < found["sync_nothing"]["details"]["logs_bytes_per_log"] < 1_000


def test_the_command_runs_one_of_them(tmp_path: Path) -> None:
    command = ["bench", "replica", "--only", "sync_full", "--records", "1000", "--seconds", "0.01"]
    result = CliRunner().invoke(app, [*command, "--json", "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["workload"] == "sync_full"
