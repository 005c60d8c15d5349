"""Promise: a driver that is killed at any point leaves no row out and none twice when it runs again.

The same query is killed at each named point, one after the other, with everything that it started;
each time it is asserted that it had come to that point. Then it runs to its end, handed to
`spark-submit`, which finds the source in the environment that it is given.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

import millstream
from millstream.spark.failures import POINTS, VARIABLE
from millstream.spark.local.session import PYTHON_VARIABLE, prepare

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("copying_driver.py")
PATIENCE_S = 240.0
LOOK_S = 0.05
ROWS = 300

ORDER = ("after commit", "before commit", "write", "planning")
"""The batch that was committed without Spark's knowledge is repeated at all the other points."""

KILLS = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""How often a driver is killed at random; `make faults` says how often."""


def start(store: Path, checkpoint: Path, log: Path, stop: str = "") -> subprocess.Popen[bytes]:
    return run([sys.executable], {VARIABLE: stop}, store, checkpoint, log)


def submit(store: Path, checkpoint: Path, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    environ = dict(os.environ)
    prepare(environ)
    assert environ[PYTHON_VARIABLE] == sys.executable
    command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]"]
    command += ["--conf", "spark.driver.memory=800m"]
    return run(command, environ, store, checkpoint, log)


def run(
    command: list[str | Path], environ: dict[str, str], store: Path, checkpoint: Path, log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, DRIVER, store, checkpoint],
            cwd=store.parent,
            env=os.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_all_of(driver: subprocess.Popen[bytes]) -> None:
    """The driver, its Java and the workers: whoever is of its session."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(name)) == driver.pid:
                    os.kill(int(name), signal.SIGKILL)
    driver.wait(timeout=60)


def wait_for(mark: Path, driver: subprocess.Popen[bytes], log: Path) -> None:
    deadline = monotonic() + PATIENCE_S
    while not mark.exists():
        assert monotonic() < deadline, log.read_text(errors="replace")[-3_000:]
        with suppress(subprocess.TimeoutExpired):
            driver.wait(LOOK_S)
            pytest.fail(log.read_text(errors="replace")[-3_000:])


def test_a_query_that_is_killed_at_each_point_copies_every_row_once(
    no_spark: None, tmp_path: Path
) -> None:
    assert sorted(ORDER) == sorted(POINTS)
    path, checkpoint, log = tmp_path / "store.db", tmp_path / "checkpoint", tmp_path / "log"
    with millstream.open(path) as store:
        store.log("from").append_many([b"%d" % i for i in range(ROWS)])

    for point in ORDER:
        mark = tmp_path / f"hit {point}"
        driver = start(path, checkpoint, log, f"{point}:{mark}")
        try:
            wait_for(mark, driver, log)
        finally:
            kill_all_of(driver)
        assert int(mark.read_text()) > 0
        with millstream.open(path) as store:
            copied = [int(record.value) for record in store.log("to").read()]
            assert copied in (list(range(100)), list(range(200))), point

    driver = submit(path, checkpoint, log)
    try:
        assert driver.wait(PATIENCE_S) == 0, log.read_text(errors="replace")[-3_000:]
    finally:
        kill_all_of(driver)
    with millstream.open(path) as store:
        assert [int(record.value) for record in store.log("to").read()] == list(range(ROWS))


@pytest.mark.skipif(not KILLS, reason="only `make faults` kills at random")
@pytest.mark.timeout(60 * (KILLS + 10))
def test_a_query_that_is_killed_at_random_copies_every_row_once(
    no_spark: None, tmp_path: Path
) -> None:
    seed = int(os.environ["MILLSTREAM_SEED"])
    chance = random.Random(seed)
    path, checkpoint, log = tmp_path / "store.db", tmp_path / "checkpoint", tmp_path / "log"
    rows = 0
    for number in range(KILLS):
        with millstream.open(path) as store:
            more = chance.randrange(1, 400)
            store.log("from").append_many([b"%d" % i for i in range(rows, rows + more)])
            rows += more
        driver = start(path, checkpoint, log)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(chance.uniform(3, 15))
        kill_all_of(driver)
        with millstream.open(path) as store:
            copied = [int(record.value) for record in store.log("to").read()]
        assert copied == list(range(len(copied))), f"seed {seed}, kill {number}"
    driver = start(path, checkpoint, log)
    try:
        assert driver.wait(PATIENCE_S) == 0, log.read_text(errors="replace")[-3_000:]
    finally:
        kill_all_of(driver)
    with millstream.open(path) as store:
        copied = [int(record.value) for record in store.log("to").read()]
    assert copied == list(range(rows)), f"seed {seed}"
