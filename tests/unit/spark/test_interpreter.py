"""Promise: Spark's workers are ready sooner, and answer Java before they import anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.spark.local.interpreter import ARCHIVES_VARIABLE, set_interpreter
from millstream.spark.local.starter.answering import VARIABLE

WORKER = """
import os, socket, sys
sys.stdin.read()  # as if imports took that long
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
    own.settimeout(60)
    own.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
    own.settimeout(None)
    own.sendall(f"{__name__} {__spec__.name} {sys.argv[1:]} {sys.path[0]}".encode())
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
    other.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
    other.sendall(b"another connection")
"""


@pytest.fixture
def environ() -> dict[str, str]:
    found = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    set_interpreter(found)
    return found


def run(environ: dict[str, str], *given: str) -> str:
    command = [environ["PYSPARK_PYTHON"], *given]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.requires("spark")
def test_spark_is_imported_from_where_it_is_installed(environ: dict[str, str]) -> None:
    archives = environ[ARCHIVES_VARIABLE]
    assert archives.count(".zip:") == 2
    path = environ | {"PYTHONPATH": f"{archives}/a.jar:{archives}/elsewhere"}
    told = run(path, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.executable)")
    assert told.split() == ["/a.jar:/elsewhere", sys.executable]


def test_another_search_path_stays(environ: dict[str, str]) -> None:
    path = environ | {"PYTHONPATH": "/other/spark/python/lib/pyspark.zip:/elsewhere"}
    told = run(path, "-c", "import os; print(os.environ['PYTHONPATH'])")
    assert told.split() == [path["PYTHONPATH"]]


def test_a_worker_is_connected_before_it_imports(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "session.py").write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as java:
        java.bind(str(tmp_path / "java.sock"))
        java.listen()
        java.settimeout(120)
        process = subprocess.Popen(
            [environ["PYSPARK_PYTHON"], "-m", "worker", "one", "two"],
            env=environ | {VARIABLE: str(tmp_path / "java.sock")},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
        )
        with process, java.accept()[0] as connection:
            process.communicate()  # only now it goes on
            told = connection.makefile("rb").read().decode()
            assert told == f"__main__ worker ['one', 'two'] {tmp_path}"
            with java.accept()[0] as another:
                assert another.makefile("rb").read() == b"another connection"
    assert process.returncode == 0


def test_a_worker_that_cannot_connect_says_so_itself(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text("print('tried by itself')")
    nowhere = environ | {VARIABLE: str(tmp_path / "nobody.sock"), "PYTHONPATH": str(tmp_path)}
    assert run(nowhere, "-m", "worker") == "tried by itself\n"
