"""Promise: pipelines whose process is killed, run again, leave no row missing and none twice."""

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

RECORDS = 1_000
DRIVER = Path(__file__).with_name("pipeline_driver.py")
PATIENCE_S = 240.0


def start(folder: Path, *wanted: str, stop: str = "") -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if stop:
        environment[VARIABLE] = stop
    command = [sys.executable, str(DRIVER), str(folder), *wanted]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def kill_at(folder: Path, name: str, point: str) -> None:
    """Run a pipeline until it comes to a point, then kill its process and all that it started."""
    reached = folder / f"{name}.reached"
    process = start(folder, name, stop=f"{point}:{reached}")
    try:
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.1)):
            if reached.exists() and reached.read_text():
                break
            assert process.poll() is None, (folder / "output.txt").read_text()
            waiting.wait(0.1)
        assert reached.exists(), f"{name} never came to {point!r}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(900)  # four Javas, one after the other
@pytest.mark.usefixtures("no_spark")
def test_killed_pipelines_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as store:
        store.log("orders").append_many(
            [b"%d" % n for n in range(RECORDS)], headers=[{"n": n} for n in range(RECORDS)]
        )
        store.queue("odd", sources=["orders"], filter="n >= 500", start="earliest", router="spark")
    rows = [json.dumps({"value": f"{n}"}) for n in range(RECORDS)]
    (tmp_path / "rows.json").write_text("\n".join(rows))

    kill_at(tmp_path, "archive", "archive moved")
    kill_at(tmp_path, "replay", "after commit")
    kill_at(tmp_path, "route", "after commit")
    with millstream.open(tmp_path / "store.db") as store:
        assert store.log("replayed").end_offset() == 300  # killed after it was durable

    process = start(tmp_path, "archive", "replay", "route")
    try:
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output.txt").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    from pyarrow import dataset

    table = dataset.dataset(tmp_path / "archive", format="parquet").to_table()
    assert sorted(table.column("offset").to_pylist()) == list(range(RECORDS))
    with millstream.open(tmp_path / "store.db") as store:
        replayed = [int(record.value) for record in store.log("replayed").read()]
        assert replayed == list(range(RECORDS))
        routed = [message.offset for message in store.queue("odd").claim(2 * RECORDS)]
        assert sorted(routed) == list(range(500, RECORDS))
