"""The bench commands: which workloads run, and what is printed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from millstream.bench import queue_bench
from millstream.bench.queue_bench import Sizes
from millstream.cli import app


@pytest.mark.parametrize("command", ["core", "queue", "spark"])
def test_an_unknown_workload_is_refused_with_the_known_ones(command: str) -> None:
    result = CliRunner().invoke(app, ["bench", command, "--only", "nothing"])
    assert result.exit_code == 2
    assert "nothing" in result.stderr
    known = ("publish_one", "claim_batch", "spark_read")
    assert any(name in result.stderr for name in known)


@pytest.mark.parametrize("option", ["--seconds", "--sync-delay-ms"])
def test_a_time_below_zero_is_refused(option: str) -> None:
    result = CliRunner().invoke(app, ["bench", "core", "--only", "publish_threads", option, "-1"])
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line for one quick workload."""
    sizes = Sizes(backlog=1_000, slice_s=0.01)
    monkeypatch.setattr(queue_bench, "Sizes", lambda: sizes)
    return ["bench", "queue", "--only", "claim_one", "--seconds", "0.02"]


def test_json_has_a_line_per_workload_and_progress_goes_to_stderr(tiny: list[str]) -> None:
    result = CliRunner().invoke(app, [*tiny, "--json"])
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["workload"] == "claim_one"
    assert result.stderr == "claim_one …\n"


def test_without_json_there_is_a_table(tiny: list[str]) -> None:
    result = CliRunner().invoke(app, tiny, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "claim_one" in result.stdout
    assert "ratio" in result.stdout
