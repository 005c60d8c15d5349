"""A compaction that is killed at any step leaves a healthy store, and the next run completes it.

The child kills itself (`kill -9`): after a number of steps, inside a step, and inside the rewrite of a
file of an earlier version. Another process publishes meanwhile; all its acknowledged records stay.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.sqlite.compact_file import compact_file
from millstream.engine.sqlite.header import INCREMENTAL, NONE
from tests.unit.store.test_compaction import KEPT, filled

pytestmark = pytest.mark.timeout(120)

BETWEEN_STEPS = """
import os, sys
from pathlib import Path
from millstream.engine.sqlite.compact_file import compact_file

steps = [0]
def heard(stage, done, total):
    steps[0] += 1
    if steps[0] == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
compact_file(Path(sys.argv[1]), heard=heard)
"""

INSIDE = """
import os, sys
from pathlib import Path
import apsw
from millstream.engine.sqlite import compaction
from millstream.engine.sqlite.compact_file import compact_file

before = compaction.{function}
def killed(connection, *given, **named):
    steps = [0]
    def step():
        steps[0] += 1
        if steps[0] == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return False
    connection.set_progress_handler(step, 1)
    return before(connection, *given, **named)
compaction.{function} = killed
compact_file(Path(sys.argv[1]), rewrite={rewrite})
"""

VACUUM = """
import os, sys
from pathlib import Path
import apsw
from millstream.engine.sqlite import compaction
from millstream.engine.sqlite.compact_file import compact_file

def killed(place, live_bytes):
    steps = [0]
    def step():
        steps[0] += 1
        if steps[0] == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return False
    def hook(connection):
        connection.set_progress_handler(step, 20)
    apsw.connection_hooks.append(hook)
compaction.check_space = killed
compact_file(Path(sys.argv[1]), rewrite=True)
"""

WRITER = """
import sys
import millstream
with millstream.open(sys.argv[1]) as ms:
    for number in range(int(sys.argv[2])):
        print(ms.log("published").append(b"%d" % number), flush=True)
"""


def killed(program: str, path: Path, step: int) -> bool:
    """Run a program; returns whether it was killed, which a late step may not be."""
    command = [sys.executable, "-c", program, str(path), str(step)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr.decode()
    return ended.returncode != 0


def check(path: Path, published: int = 0) -> None:
    assert examine(path).healthy
    for _ in range(2):
        with millstream.open(path) as ms:
            assert [record.value for record in ms.log("kept").read()] == KEPT
            values = [record.value for record in ms.log("published").read()]
            assert values == [b"%d" % number for number in range(published)]
        compact_file(path, rewrite=True)
        report = compact_file(path)
        assert report.free_bytes == report.returned_bytes == 0


@pytest.mark.parametrize("step", [1, 2, 5])
def test_between_two_steps(tmp_path: Path, step: int) -> None:
    path = filled(tmp_path / "s.db")
    assert killed(BETWEEN_STEPS, path, step)
    check(path)


@pytest.mark.parametrize("step", [1, 10, 20, 40, 80])
def test_inside_a_step(tmp_path: Path, step: int) -> None:
    path = filled(tmp_path / "s.db")
    assert killed(INSIDE.format(function="return_pages", rewrite=False), path, step)
    check(path)


@pytest.mark.parametrize("step", [1, 20, 200])
def test_inside_a_rewrite(tmp_path: Path, step: int) -> None:
    path = filled(tmp_path / "s.db", mode=NONE)
    assert killed(VACUUM, path, step) or step > 1
    check(path)


@pytest.mark.parametrize("step", [1, 10, 30])
def test_between_a_rewrite_and_the_note_of_it(tmp_path: Path, step: int) -> None:
    path = filled(tmp_path / "s.db", mode=NONE)
    assert killed(INSIDE.format(function="complete", rewrite=True), path, step)
    check(path)


@pytest.mark.parametrize("mode", [INCREMENTAL, NONE])
def test_records_that_were_acknowledged_meanwhile_stay(tmp_path: Path, mode: int) -> None:
    path, count = filled(tmp_path / "s.db", mode=mode), 40
    command = [sys.executable, "-c", WRITER, str(path), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "0\n"
        if mode == INCREMENTAL:
            assert killed(BETWEEN_STEPS, path, 3)
        else:
            assert killed(INSIDE.format(function="complete", rewrite=True), path, 10)
        offsets = [0, *(int(line) for line in writer.stdout)]
    assert writer.returncode == 0
    assert offsets == list(range(count))
    check(path, published=count)
