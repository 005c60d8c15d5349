"""An interactive transaction is stored as a whole or not at all, wherever its process is killed."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine

pytestmark = pytest.mark.timeout(240)

KILLS = 6

WORKER = """
import os, sys, millstream
with millstream.open(sys.argv[1]) as ms:
    while True:
        with ms.begin() as tx:
            n = tx.sql("SELECT count(*) FROM orders").scalar()
            tx.sql("INSERT INTO orders VALUES (?)", [n])
            tx.put("jobs", n)
            tx.append("history", n)
        print(n, flush=True)
"""

STOPPED = """
import os, signal, sys, millstream
with millstream.open(sys.argv[1]) as ms, ms.begin() as tx:
    tx.sql("INSERT INTO orders VALUES (0)")
    tx.sql("CREATE TABLE more (n)")
    tx.put("jobs", 0)
    tx.append("history", 0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(program: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "app.db"
    with millstream.open(found) as ms:
        ms.create_queue("jobs")
        with ms.begin() as tx:
            tx.sql("CREATE TABLE orders (n INTEGER PRIMARY KEY)")
    return found


def test_a_process_that_is_killed_inside_the_block_leaves_nothing(path: Path) -> None:
    worker = start(STOPPED, path)
    worker.communicate(timeout=120)
    assert worker.returncode == -9
    with millstream.open(path) as ms:
        assert ms.sql("SELECT count(*) FROM orders").scalar() == 0
        assert ms.sql("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").scalar() == 0
        assert not ms.queue("jobs").claim(1)
        assert list(ms.log("history").read()) == []
        with ms.begin() as tx:
            tx.sql("INSERT INTO orders VALUES (0)")
    assert examine(path).healthy


def test_tables_queues_and_logs_agree_after_every_kill(path: Path) -> None:
    chooser = random.Random(int(os.environ["MILLSTREAM_SEED"]))
    acknowledged = -1
    for _ in range(KILLS):
        worker = start(WORKER, path)
        assert worker.stdout is not None
        lines = iter(worker.stdout.readline, "")
        for _ in range(chooser.randrange(1, 40)):
            acknowledged = int(next(lines))
        killer = threading.Timer(chooser.uniform(0, 0.005), worker.kill)
        killer.start()
        for line in lines:
            acknowledged = int(line)
        killer.join()
        worker.communicate()
        with millstream.open(path) as ms:
            orders = [n for (n,) in ms.sql("SELECT n FROM orders ORDER BY n")]
            assert orders == list(range(len(orders)))
            assert len(orders) >= acknowledged + 1
            assert [record.json() for record in ms.log("history").read()] == orders
            assert [message.json() for message in ms.queue("jobs").peek(10_000)] == orders
    assert examine(path).healthy
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
