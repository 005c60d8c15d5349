"""Promise: a command whose Java or Python worker is killed alone says so, and is run again.

The driver survives: it ends by itself, with one sentence that says what happened and what to do. Run
again, every row is there once, and nothing that was staged stays behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import millstream
from millstream.spark.failures import VARIABLE
from tests.spark.test_pipeline_kill import PATIENCE_S, java_of, kill_all
from tests.spark.test_pipeline_random_kill import served

ROWS = 50
OF_JAVA = ("WARNING: Using incubator modules", "NOTE: Picked up JDK_JAVA_OPTIONS")

LONG = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""Whether long tests run too: `make faults` says so."""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not LONG, reason="only `make faults` starts so many Javas"),
    pytest.mark.timeout(1_200),
    pytest.mark.usefixtures("no_spark"),
]


def run(folder: Path, store: str, stop: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "millstream", "spark", "run", "replay", "rows.json"]
    command += ["--store", store, "--to", "to", "--checkpoint", "state", "--master", "local[1]"]
    return subprocess.Popen(
        [*command, "--no-progress"],
        cwd=folder,
        env=os.environ | ({VARIABLE: stop} if stop else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def killed(folder: Path, store: str, point: str, victim: str) -> str:
    """What a command says that lost its Java or a worker at some point."""
    reached = folder / f"{point}, {victim}"
    process = run(folder, store, stop=f"{point}:{reached}")
    try:
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.1)):
            if process.poll() is not None or (reached.exists() and reached.read_text()):
                break
            waiting.wait(0.1)
        assert process.poll() is None, process.communicate()[1]
        worker = int(reached.read_text())
        assert worker != process.pid
        found = java_of(process) if victim == "java" else [worker]
        assert found
        for one in found:
            os.kill(one, signal.SIGKILL)
        _, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, told
    finally:
        kill_all(process)
    lines = [line for line in told.splitlines() if not line.startswith(OF_JAVA)]
    assert len(lines) == 1, told
    full = Path(lines[0].partition("the full text is in ")[2].removesuffix(")"))
    assert full.exists(), lines[0]
    full.unlink()
    return lines[0]


@pytest.mark.parametrize("by_server", [False, True], ids=["path", "server"])
def test_a_command_that_loses_its_java_or_a_worker_says_so_and_is_run_again(
    tmp_path: Path, by_server: bool
) -> None:
    path = tmp_path / "store.db"
    rows = "\n".join(json.dumps({"value": f"{n}"}) for n in range(ROWS))
    (tmp_path / "rows.json").write_text(rows)
    millstream.open(path).close()
    with served(path, by_server=by_server) as store_name:
        for point in ("write", "after commit"):
            told = killed(tmp_path, store_name, point, "java")
            assert told.startswith("error: Spark's Java was killed by signal 9 before"), told
            assert "Run the same command again" in told
        for point in ("before commit", "after commit"):
            told = killed(tmp_path, store_name, point, "worker")
            assert told.startswith("error: a Python worker of Spark was killed, or crashed"), told
            assert "Run the same command again" in told
        process = run(tmp_path, store_name)
        try:
            output, told = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, told
        finally:
            kill_all(process)
    assert f"records\t{ROWS} of {ROWS}" in output
    assert not Path(f"{path}-staging").exists()
    with millstream.open(path) as store:
        assert [int(record.value) for record in store.log("to").read()] == list(range(ROWS))
