"""Promise: pipelines whose process is killed, run again, leave no row missing and none twice.

The whole process is killed, with all that it started, or its Java alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.spark.archive import Archive
from millstream.spark.failures import VARIABLE

RECORDS = 1_000
KEYS = 100
DRIVER = Path(__file__).with_name("pipeline_driver.py")
PATIENCE_S = 240.0

KILLS = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""How often pipelines are killed at random; `make faults` says how often."""


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
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            is_java = entry.joinpath("comm").read_text().strip() == "java"
            if is_java and os.getsid(int(entry.name)) == process.pid:
                found.append(int(entry.name))
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


def check_archive(folder: Path) -> None:
    from pyarrow import parquet

    archive = Archive(folder / "archive")
    files = [file.path for one in archive.segments("orders") for file in one.files]
    offsets = [
        offset
        for path in files
        for offset in parquet.read_table(folder / "archive" / path).column("offset").to_pylist()
    ]
    assert sorted(offsets) == list(range(RECORDS))


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


@contextmanager
def served(path: Path, *, by_server: bool) -> Iterator[str]:
    """What a driver calls the store: its path, or the address of a server that has it open."""
    if not by_server:
        yield str(path)
        return
    with running(path, Settings(port=0, stop_s=1.0), durability="relaxed") as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.mark.crash
@pytest.mark.requires("lake")
@pytest.mark.skipif(not KILLS, reason="only `make faults` kills at random")
@pytest.mark.timeout(120 * (KILLS + 10))
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("by_server", [False, True], ids=["path", "server"])
def test_pipelines_that_are_killed_at_random_lose_nothing_and_repeat_nothing(
    tmp_path: Path, by_server: bool
) -> None:
    chance = random.Random(int(os.environ["MILLSTREAM_SEED"]))
    path = tmp_path / "store.db"
    wanted = ["archive", "delta", "replay", "iceberg", "compact", "route"]
    with millstream.open(path) as store:
        prepare(tmp_path, store)
    with served(path, by_server=by_server) as store_name:
        for _ in range(KILLS):
            process = start(tmp_path, store_name, *chance.sample(wanted, len(wanted)))
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(4, 30))
            try:
                if process.poll() is None and chance.random() < 0.3 and java_of(process):
                    kill_java(process, tmp_path)
            finally:
                kill_all(process)
        process = start(tmp_path, store_name, *wanted)
        try:
            assert process.wait(PATIENCE_S) == 0, told(tmp_path)
        finally:
            kill_all(process)
    check_archive(tmp_path)
    check_tables(tmp_path / "archive")
    with millstream.open(path) as store:
        check_logs(store)
        latest = [(record.key, int(record.value)) for record in store.log("compacted").read()]
        last = range(RECORDS - KEYS, RECORDS)
        assert latest == [(b"%d" % (n % KEYS), n) for n in last]


def check_tables(archive: Path) -> None:
    from millstream.spark.lake import delta_table, iceberg_table

    for found in (
        delta_table(archive).to_pyarrow_table(),
        iceberg_table(archive).scan().to_arrow(),
    ):
        assert sorted(found.column("offset").to_pylist()) == list(range(RECORDS))
