"""Promise: a continuous table whose query is killed again and again has every record once.

The command runs as users run it, while a writer appends. It is killed with SIGKILL at random times, with
all that it started. Then it runs to the end, and table and log are compared.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

import millstream
from millstream import Millstream
from tests.spark.test_pipeline_table import fill, rows, schema

KILLS = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "3"))
SEED = int(os.environ["MILLSTREAM_SEED"])
PATIENCE_S = 240.0
LASTS_S = 6.0
"""How long a run may go on after its first commit before it is killed."""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.requires("lake"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(120 * (KILLS + 5)),
    pytest.mark.usefixtures("no_spark"),
]


def start(folder: Path, kind: str, *more: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "millstream.cli",
        "spark",
        "run",
        "table",
        str(folder / "lake"),
    ]
    command += ["--log", "orders", "--store", str(folder / "store.db"), "--kind", kind]
    command += ["--master", "local[2]", "--target-file-size", "1MiB", *more]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def told(folder: Path) -> str:
    return (folder / "output.txt").read_text(errors="replace")[-3_000:]


@contextmanager
def appending(store: Millstream) -> Iterator[None]:
    """Append records until the block ends."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.05):
            fill(store, store.log("orders").end_offset(), 50)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path, kind: str, upsert: bool) -> None:
    chance = random.Random(SEED)
    more = ["--upsert"] if upsert else []
    with millstream.open(tmp_path / "store.db") as store:
        store.log("orders", schema=schema())
        fill(store, 0, 100)
        with appending(store):
            for number in range(KILLS):
                print(number, kill_once(tmp_path, kind, chance, more), flush=True)
        end = store.log("orders").end_offset()
    last = start(tmp_path, kind, "--once", *more)
    try:
        assert last.wait(PATIENCE_S) == 0, told(tmp_path)
    finally:
        kill_all(last)
    found = [(row["offset"], row["id"]) for row in rows(tmp_path / "lake", kind)]
    assert found == [(n, n) for n in range(end - 10 if upsert else 0, end)]


def kill_once(folder: Path, kind: str, chance: random.Random, more: list[str]) -> str:
    """Start a run, kill it some time after a commit of it is told; return the moment."""
    output = folder / "output.txt"
    before = output.read_text().count("table: ") if output.exists() else 0
    lasts_s = chance.uniform(0, LASTS_S)
    process = start(folder, kind, "--interval", "0.5s", *more)
    try:
        deadline, waiting = monotonic() + PATIENCE_S, threading.Event()
        while output.read_text().count("table: ") == before and monotonic() < deadline:
            assert process.poll() is None, told(folder)
            waiting.wait(0.02)
        waiting.wait(lasts_s)
        assert process.poll() is None, told(folder)
    finally:
        kill_all(process)
    return f"killed {lasts_s:.1f} s after its first commit"


def kill_all(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
