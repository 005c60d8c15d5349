"""Promise: every pipeline is a command, with progress, a summary, and errors of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

import millstream
from millstream.cli import app
from millstream.format import keys
from tests.spark.test_damage import damaged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Any]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the shared session, in an empty directory; answers its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("millstream.spark.local.session.local_session", lambda **_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def start(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["spark", "run", *arguments])
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        return result

    return start


def json_of(result: Any) -> Any:
    return msgspec.json.decode(result.stdout)


def test_every_pipeline_runs_and_tells(run: Run, tmp_path: Path) -> None:
    with millstream.open("millstream.db") as store:
        store.log("orders").append_many(["a", "b", "c"], keys=["x", "y", "x"])
        store.queue("routed", sources=["orders"], start="earliest", router="spark")
        work = store.queue("work", max_attempts=1)
        work.put_many(["1", "2"])
        work.fail(work.claim(1), reason="no")

        result = run("archive", "kept", "--log", "orders")
        assert "records\t3" in result.stdout
        assert "orders\t0\t3\t3" in result.stdout
        assert "archive: 3 of 3" in result.stderr
        found = run("archive", "kept", "--log", "orders", "--json", "--no-progress")
        assert json_of(found)["records"] == 0
        assert found.stderr == ""
        rows = "kept/log=orders"
        replayed = ("replay", rows, "--to", "copy", "--checkpoint", "state", "--json")
        assert json_of(run(*replayed))["records"] == 3
        assert [record.key for record in store.log("copy").read()] == [b"x", b"y", b"x"]
        assert json_of(run("compact", "orders", "--to", "last", "--json"))["kept"] == 2
        assert "records\t2 kept of 3" in run("compact", "orders", "--parquet", "last.d").stdout
        assert json_of(run("route", "--json"))["assigned"] == 3
        told = run("report", "page", "--queue", "work").stdout
        assert "work\t1\t0\t1" in told
        assert (tmp_path / "page" / "report.html").exists()
        found = run("redrive", "work", "--where", "reason = 'no'", "--json")
        assert json_of(found)["redriven"] == 1
        assert json_of(found)["pipeline"] == "redrive"


def test_errors_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(*arguments: str, code: int = 1) -> str:
        lines = run(*arguments, code=code).stderr.splitlines()
        assert len(lines) == 1
        return str(lines[0])

    assert "there is no store at" in error("report", "page", code=2)
    millstream.open("millstream.db").close()
    assert error("redrive", "none", "--no-progress") == (
        "error: there is no queue 'none'; `millstream queue list` shows what there is"
    )
    with millstream.open("millstream.db") as store:
        store.log("some").append("x", timestamp=5)
    Path("rows.json").write_text('{"value": "a"}\n{"value": null}')
    replay = ("replay", "rows.json", "--format", "json", "--to", "x", "--checkpoint", "c")
    assert "cast them" in error(*replay, "--column", "value=length(value)", "--no-progress")
    assert "either names of logs or a pattern" in error("archive", "kept", "--no-progress")
    with monkeypatch.context() as patch:
        patch.setattr("millstream.spark.local.session.find_spec", lambda _: None)
        told = error("archive", "kept", "--log", "x", code=2)
    assert "Spark is not installed here" in told
    assert "pip install 'millstream[spark-local]'" in told


def test_damage_names_the_option_of_the_command(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "millstream.db")
    damaged(path, keys.ENTRY)
    for arguments in (("archive", "kept", "--log", "b"), ("compact", "b", "--to", "last")):
        (told,) = run(*arguments, "--no-progress", code=1).stderr.splitlines()
        assert "--allow-gaps" in told
        assert "failOnDataLoss" not in told
        assert "allow_gaps" not in told


@pytest.mark.usefixtures("no_spark")
def test_a_missing_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    millstream.open("millstream.db").close()
    result = CliRunner().invoke(app, ["spark", "run", "redrive", "work"])
    assert result.exit_code == 2
    assert "JAVA_HOME" in result.stderr
