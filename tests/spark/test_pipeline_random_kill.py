"""Promise: pipelines that are killed again and again leave no row missing and none twice.

Before each run there is new work for every pipeline, so that each kill can hit something. A run is
killed at a random time after its Spark is ready, or at a point that is named in the code: the whole
process, its Java alone, or one Python worker alone. Then the rest is done, and everything is counted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.spark.archive.archive import Archive
from millstream.spark.pipelines.compact import NOTE
from tests.spark.test_pipeline_kill import (
    PATIENCE_S,
    java_of,
    kill_all,
    kill_java,
    start,
    told,
    workers_of,
)

KILLS = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""How often pipelines are killed at random; `make faults` says how often."""

SEED = int(os.environ["MILLSTREAM_SEED"])
KEYS = 100

WORKER_S = 30.0
"""How long a run may go on after one of its workers was killed."""

RANDOM_S, POINT_S = 25.0, 60.0
"""How long after Spark is ready a run is killed: at a random time, or at a point it does not reach."""

PLAIN = ["archive", "delta", "iceberg", "route"]
"""Pipelines that take what is new; of `replay` and `compact` there are new ones."""

POINTS = [
    *("archive staged", "archive moved", "archive noted"),
    *("merge staged", "merge moved", "merge noted", "table planned", "table committed"),
    *("replay staged", "replay appended", "compact noted", "compact appended"),
    *("write", "before commit", "after commit"),
]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.requires("lake"),
    pytest.mark.skipif(not KILLS, reason="only `make faults` kills at random"),
    pytest.mark.timeout(150 * (KILLS + 10)),
    pytest.mark.usefixtures("no_spark"),
]


@contextmanager
def served(path: Path, *, by_server: bool) -> Iterator[str]:
    """What a driver calls the store: its path, or the address of a server that has it open."""
    if not by_server:
        yield str(path)
        return
    with running(path, Settings(port=0, stop_s=1.0), durability="relaxed") as server:
        yield f"http://127.0.0.1:{server.port}"


class Work:
    """What there is to do: rows by their numbers, and pipelines that have not ended yet."""

    def __init__(self, folder: Path, store_name: str, chance: random.Random) -> None:
        self._folder, self._store_name, self._chance = folder, store_name, chance
        self.rows = {"orders": 0, "keyed": 0, "replayed": 0}
        self.compacted: list[str] = []
        self._waiting: list[str] = []

    def add(self, number: int) -> None:
        """More records, a new replay, and every other time a new compaction."""
        more = {name: self._chance.randrange(1, 900) for name in self.rows}
        orders, keyed, replayed = (
            range(self.rows[name], self.rows[name] + count) for name, count in more.items()
        )
        with millstream.open(self._store_name) as store:
            store.log("orders").append_many(
                [b"%d" % n for n in orders], headers=[{"n": n} for n in orders]
            )
            store.log("keyed").append_many(
                [b"%d" % n for n in keyed], keys=[f"{n % KEYS}" for n in keyed]
            )
        rows = "\n".join(json.dumps({"value": f"{n}"}) for n in replayed)
        (self._folder / f"rows-{number}.json").write_text(rows)
        self._waiting.append(f"replay:{number}")
        if number % 2 == 0:
            self._waiting.append(f"compact:{number}")
            self.compacted.append(f"compacted-{number}")
        self.rows = {name: count + more[name] for name, count in self.rows.items()}

    def left(self) -> list[str]:
        """What is still to be run, in a random order; replays in their own."""
        self._waiting = [name for name in self._waiting if f"end {name}" not in self.steps()]
        replays = iter([name for name in self._waiting if name.startswith("replay")])
        mixed = self._chance.sample([*PLAIN, *self._waiting], len(PLAIN) + len(self._waiting))
        return [next(replays) if name.startswith("replay") else name for name in mixed]

    def steps(self) -> list[str]:
        """What drivers have noted so far."""
        path = self._folder / "steps.txt"
        return path.read_text().splitlines() if path.exists() else []


def hit(
    process: subprocess.Popen[bytes], folder: Path, reached: Path, chance: random.Random
) -> str:
    """Kill a run, or a part of it; it has ended afterwards. What was killed."""
    victim = chance.choice(["all", "all", "java", "worker"])
    workers = workers_of(process)
    if reached.exists():
        at = int(reached.read_text() or process.pid)
        workers = [at] if at != process.pid else []
        victim = victim if workers else "all"  # a driver that waits would not see it
    if victim == "java" and java_of(process):
        kill_java(process, folder)
        return "java"
    if victim == "worker" and workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(WORKER_S)  # it may have had nothing to do, and the run goes on
        kill_all(process)
        return "worker"
    kill_all(process)
    return "all"


def kill_once(work: Work, folder: Path, store_name: str, chance: random.Random) -> str:
    """Start a run and kill it; what was killed, and where."""
    before, reached = len(work.steps()), folder / "reached"
    reached.unlink(missing_ok=True)
    point = chance.choice(POINTS) if chance.random() < 0.5 else ""
    lasts_s = POINT_S if point else chance.uniform(0, RANDOM_S)
    stop = f"{point}:{reached}" if point else ""
    process = start(folder, store_name, *work.left(), stop=stop)
    try:
        deadline, waiting = monotonic() + PATIENCE_S, Event()
        while len(work.steps()) == before and process.poll() is None and monotonic() < deadline:
            waiting.wait(0.05)
        deadline = monotonic() + lasts_s
        while not reached.exists() and process.poll() is None and monotonic() < deadline:
            waiting.wait(0.02)
        if process.poll() is not None:
            assert process.returncode == 0, told(folder)
            return "ended before"
        victim = hit(process, folder, reached, chance)
    finally:
        kill_all(process)
    during = [line for line in work.steps()[before:] if line.startswith("begin")][-1:]
    return f"{victim}, at {point if reached.exists() else 'a random time'}, {during}"


@pytest.mark.parametrize("by_server", [False, True], ids=["path", "server"])
def test_pipelines_that_are_killed_at_random_lose_nothing_and_repeat_nothing(
    tmp_path: Path, by_server: bool
) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "store.db"
    with millstream.open(path) as store:
        store.queue("odd", sources=["orders"], filter="n >= 500", start="earliest", router="spark")
    with served(path, by_server=by_server) as store_name:
        work = Work(tmp_path, store_name, chance)
        for number in range(KILLS):
            work.add(number)
            print(number, kill_once(work, tmp_path, store_name, chance), flush=True)
        process = start(tmp_path, store_name, *work.left())
        try:
            assert process.wait(2 * PATIENCE_S) == 0, told(tmp_path)
        finally:
            kill_all(process)
    check_archive(tmp_path / "archive", work.rows["orders"])
    with millstream.open(path) as store:
        check_logs(store, work)


def check_archive(path: Path, count: int) -> None:
    """Every record once: by the manifest, and in both tables; and no file that is not known."""
    from pyarrow import parquet

    from millstream.spark.archive.lake import delta_table, iceberg_table

    segments = Archive(path).segments("orders")
    tables: list[Any] = [parquet.read_table(path / f.path) for one in segments for f in one.files]
    found = [offset for one in tables for offset in one.column("offset").to_pylist()]
    assert sorted(found) == list(range(count))
    for table in (delta_table(path).to_pyarrow_table(), iceberg_table(path).scan().to_arrow()):
        assert sorted(table.column("offset").to_pylist()) == list(range(count))
    known = {path / one for segment in segments for one in segment.paths()}
    assert set(path.glob("log=*/**/*.parquet")) <= known


def check_logs(store: Millstream, work: Work) -> None:
    """Every row once: in the log of replays, in the queue, and in each compaction."""
    replayed = [int(record.value) for record in store.log("replayed").read()]
    assert replayed == list(range(work.rows["replayed"]))
    routed = [message.offset for message in store.queue("odd").claim(2 * work.rows["orders"])]
    assert sorted(routed) == list(range(500, work.rows["orders"]))
    for name in work.compacted:
        end = store.log(name).metadata.get(NOTE)["end"]
        latest = [(record.key, int(record.value)) for record in store.log(name).read()]
        assert latest == [(b"%d" % (n % KEYS), n) for n in range(max(0, end - KEYS), end)], name
