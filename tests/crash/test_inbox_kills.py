"""Posts of other programs arrive once and in order, whichever process is killed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine

pytestmark = pytest.mark.timeout(240)

ROWS, WRITERS, KILLS = 150, 3, 8

WRITER = """
import json, random, sqlite3, sys
path, number, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = sqlite3.connect(path, timeout=60, isolation_level=None)
generator = random.Random(number)
row = 0
while row < rows:
    connection.execute("BEGIN IMMEDIATE")
    for _ in range(min(generator.randint(1, 4), rows - row)):
        connection.execute(
            "INSERT INTO millstream_inbox (queue, value) VALUES (?, ?)",
            (f"jobs{row % 2}", json.dumps([number, row])),
        )
        row += 1
    connection.execute("COMMIT")
connection.close()
"""

MOVER = """
import sys, millstream
with millstream.open(sys.argv[1]) as ms:
    print("open", flush=True)
    sys.stdin.read()
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], *, kill: bool = False) -> None:
    if kill:
        process.kill()
    process.communicate()


def opened(path: Path) -> subprocess.Popen[str]:
    """Start a process that has the store open, and so moves posts."""
    process = start(MOVER, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_two_movers_three_writers_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with millstream.open(path) as ms:
        for name in ("jobs0", "jobs1"):
            ms.create_queue(name)
    movers = [opened(path), opened(path)]
    writers = [start(WRITER, path, number, ROWS) for number in range(WRITERS)]
    for number in range(KILLS):
        end(movers[number % 2], kill=True)
        movers[number % 2] = opened(path)
    for writer in writers:
        assert writer.wait(120) == 0
        end(writer)
    for mover in movers:
        end(mover, kill=True)
    with millstream.open(path) as ms:
        for parity in (0, 1):
            expected = [[n, row] for n in range(WRITERS) for row in range(parity, ROWS, 2)]
            values: list[list[int]] = []
            while len(values) < len(expected):
                messages = ms.queue(f"jobs{parity}").claim(100, wait=60)
                assert messages
                values += [json.loads(message.value) for message in messages]
            rows_of = defaultdict(list)
            for writer_number, row in values:
                rows_of[writer_number].append(row)
            for rows in rows_of.values():
                assert rows == list(range(parity, ROWS, 2))
            assert sorted(values) == expected
            assert not ms.queue(f"jobs{parity}").claim(1)
    with closing(sqlite3.connect(path)) as connection:
        for table in ("millstream_inbox", "millstream_inbox_failed"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    report = examine(path)
    assert report.healthy, report.problems
