"""Promise: workers of Spark are forked from a process that has imported all of it, as if started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.spark.local import fork_server
from millstream.spark.local.fork_server import ForkServerProcess, fork_workers
from millstream.spark.local.interpreter import set_interpreter
from millstream.spark.local.starter.asking import SERVER_VARIABLE, encode
from millstream.spark.local.starter.forking import Request, decode, fits

pytestmark = [
    pytest.mark.requires("spark"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
]

WORKER = """
import os, sys
print("pyarrow" in sys.modules, __name__, __spec__.name, sys.argv[1:], os.environ["ASKED"])
print(os.getcwd(), sys.path[0], sys.stdin.read(), flush=True)
print("to the other", file=sys.stderr)
sys.exit(7)
"""
RANDOM = "import random, sys, numpy; print(random.random(), numpy.random.random())"
WAITING = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerProcess]:
    started = ForkServerProcess(plain_environ())
    yield started
    started.end()
    assert not Path(started.address).parent.exists()


def plain_environ() -> dict[str, str]:
    names = ("PATH", "HOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    found = {name: os.environ[name] for name in names if name in os.environ}
    set_interpreter(found)
    return found


@pytest.fixture
def environ(server: ForkServerProcess) -> dict[str, str]:
    return plain_environ() | {SERVER_VARIABLE: server.address}


def start(
    environ: dict[str, str], directory: Path, text: str, *given: str
) -> subprocess.Popen[str]:
    (directory / "worker.py").write_text(text)
    return subprocess.Popen(
        [environ["PYSPARK_PYTHON"], "-m", "worker", *given],
        env=environ,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(environ: dict[str, str], directory: Path, text: str) -> str:
    with start(environ, directory, text) as process:
        told, problems = process.communicate()
    assert process.returncode == 0, problems
    return told


def test_a_forked_worker_is_as_one_that_is_started(environ: dict[str, str], tmp_path: Path) -> None:
    with start(environ | {"ASKED": "by it"}, tmp_path, WORKER, "one", "two") as process:
        told, problems = process.communicate("its input")
    has_all, *rest = told.split(maxsplit=1)
    assert has_all == "True"
    assert rest == [
        f"__main__ worker ['one', 'two'] by it\n{tmp_path} {tmp_path} its input\n",
    ]
    assert problems == "to the other\n"
    assert process.returncode == 7


def test_without_a_server_a_worker_is_started_plainly(
    environ: dict[str, str], tmp_path: Path
) -> None:
    alone = environ | {SERVER_VARIABLE: str(tmp_path / "nobody.sock"), "ASKED": "by it"}
    with start(alone, tmp_path, WORKER) as process:
        told, _ = process.communicate("")
    assert told.startswith("False __main__ worker")
    assert process.returncode == 7


def test_another_search_path_is_started_plainly(environ: dict[str, str], tmp_path: Path) -> None:
    path = f"{tmp_path}{os.pathsep}{environ.get('PYTHONPATH', '')}"
    other = environ | {"PYTHONPATH": path, "ASKED": "by it"}
    with start(other, tmp_path, WORKER) as process:
        told, _ = process.communicate("")
    assert told.startswith("False __main__ worker")


def test_each_worker_has_random_numbers_of_its_own(environ: dict[str, str], tmp_path: Path) -> None:
    found = [run(environ, tmp_path, RANDOM).split() for _ in range(2)]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_a_worker_ends_when_java_ends_the_process_that_it_knows(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with start(environ, tmp_path, WAITING) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert child != process.pid
        process.kill()
        assert process.stdout.read() == ""  # the child held it, and has ended


def test_a_worker_goes_on_when_the_server_has_ended(tmp_path: Path) -> None:
    server = ForkServerProcess(plain_environ())
    environ = plain_environ() | {SERVER_VARIABLE: server.address}
    with start(environ, tmp_path, WAITING) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        child = int(process.stdout.readline())
        server.process.kill()
        server.process.wait()
        os.kill(child, 0)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait() == 0
    server.end()


def test_a_server_ends_with_its_driver(tmp_path: Path) -> None:
    server = ForkServerProcess(plain_environ())
    assert server.process.stdin is not None
    server.process.stdin.close()  # as if the driver had been killed
    assert server.process.wait() == 0
    assert not Path(server.address).parent.exists()
    server.end()


def test_only_workers_of_our_script_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "ForkServerProcess", None)
    environ = {"PYSPARK_PYTHON": "python3.12"}
    fork_workers(environ)
    assert environ == {"PYSPARK_PYTHON": "python3.12"}


OWN = {"PYTHONPATH": "/a:/b", "PYTHONHASHSEED": "0", "MILLSTREAM_PYTHON": "python"}


def test_what_is_asked_for_is_told_whole() -> None:
    asked = Request("/päth", ["-m", "module", ""], {"A": "b=c", "EMPTY": ""})
    assert decode(encode(asked.directory, asked.given, asked.environ)) == asked


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"PYTHONPATH": "/spark.jar:/a:/b:/a:/b"},
        {"PYTHON_WORKER_FACTORY_SECRET": "x", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"},
        {"OTHER": "1", "TZ": "UTC"},
    ],
)
def test_a_worker_that_would_import_the_same_is_forked(given: dict[str, str]) -> None:
    assert fits(Request("/", ["-m", "module"], OWN | given), OWN)


@pytest.mark.parametrize(
    "given",
    [
        {"PYTHONPATH": "/b:/a"},
        {"PYTHONPATH": "/a"},
        {"PYTHONPATH": "/a:/b:/c.zip"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONOPTIMIZE": "1"},
        {"MILLSTREAM_PYTHON": "another"},
        {"OMP_NUM_THREADS": "4"},
        {"LC_ALL": "C"},
        {"ARROW_DEFAULT_MEMORY_POOL": "system"},
    ],
)
def test_a_worker_that_would_import_something_else_is_not(given: dict[str, str]) -> None:
    assert not fits(Request("/", ["-m", "module"], OWN | given), OWN)
    assert not fits(Request("/", ["-c", "pass"], OWN), OWN)
