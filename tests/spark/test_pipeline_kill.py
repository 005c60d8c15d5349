"""Promise: pipelines whose process is killed, run again, leave no row missing and none twice.

The whole process is killed, with all that it started, or its Java alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.spark.failures import VARIABLE

RECORDS = 1_000
KEYS = 100
DRIVER = Path(__file__).with_name("pipeline_driver.py")
PATIENCE_S = 240.0


def start(folder: Path, store: str, *wanted: str, stop: str = "") -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if stop:
        environment[VARIABLE] = stop
    command = [sys.executable, str(DRIVER), str(folder), store, *wanted]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def told(folder: Path) -> str:
    return (folder / "output.txt").read_text(errors="replace")[-3_000:]


def java_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The Java that a driver has started."""
    return [one for one, command in started_by(process).items() if b"/java" in command[0]]


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The Python processes that run tasks of a driver, and plan its reads and writes."""
    found = started_by(process).items()
    return [one for one, command in found if any(b"pyspark." in part for part in command[1:4])]


def started_by(process: subprocess.Popen[bytes]) -> dict[int, list[bytes]]:
    """What a driver has started and still runs: the words of each command, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(number := int(entry.name)) == process.pid != number:
                found[number] = entry.joinpath("cmdline").read_bytes().split(b"\0")
    return found


def kill_java(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the Java alone: its driver must see that, and end by itself."""
    for java in java_of(process):
        os.kill(java, signal.SIGKILL)
    assert process.wait(PATIENCE_S) != 0, told(folder)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_at(folder: Path, name: str, point: str, *, java_alone: bool = False) -> None:
    """Run a pipeline until it comes to a point, then kill its process and all that it started."""
    reached = folder / f"{name}.reached"
    process = start(folder, str(folder / "store.db"), name, stop=f"{point}:{reached}")
    try:
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S / 0.1)):
            if reached.exists() and reached.read_text():
                break
            assert process.poll() is None, told(folder)
            waiting.wait(0.1)
        assert reached.exists(), f"{name} never came to {point!r}"
        if java_alone:
            kill_java(process, folder)
    finally:
        kill_all(process)


def prepare(folder: Path, store: Millstream) -> None:
    numbers = range(RECORDS)
    store.log("orders").append_many(
        [b"%d" % n for n in numbers], headers=[{"n": n} for n in numbers]
    )
    store.log("keyed").append_many(
        [b"%d" % n for n in numbers], keys=[f"{n % KEYS}" for n in numbers]
    )
    store.queue("odd", sources=["orders"], filter="n >= 500", start="earliest", router="spark")
    (folder / "rows.json").write_text("\n".join(json.dumps({"value": f"{n}"}) for n in numbers))


def check_logs(store: Millstream) -> None:
    assert [int(record.value) for record in store.log("replayed").read()] == list(range(RECORDS))
    routed = [message.offset for message in store.queue("odd").claim(2 * RECORDS)]
    assert sorted(routed) == list(range(500, RECORDS))


@pytest.mark.timeout(900)  # four Javas, one after the other
@pytest.mark.usefixtures("no_spark")
def test_killed_pipelines_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with millstream.open(path) as store:
        prepare(tmp_path, store)

    kill_at(tmp_path, "archive", "archive moved")
    kill_at(tmp_path, "replay", "after commit", java_alone=True)
    kill_at(tmp_path, "route", "after commit")
    with millstream.open(path) as store:
        assert store.log("replayed").end_offset() == 300  # killed after it was durable

    process = start(tmp_path, str(path), "archive", "replay", "route")
    try:
        assert process.wait(PATIENCE_S) == 0, told(tmp_path)
    finally:
        kill_all(process)

    from pyarrow import dataset

    table = dataset.dataset(tmp_path / "archive", format="parquet").to_table()
    assert sorted(table.column("offset").to_pylist()) == list(range(RECORDS))
    with millstream.open(path) as store:
        check_logs(store)
