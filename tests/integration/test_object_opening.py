"""Opening a bucket to write: what it costs after kills, and what two writers at once are told.

- A writer that is killed again and again leaves a bounded number of commits to replay, so the requests
  of an opening stay below a bound, however often it happens.
- Of two writers that open a store at once one has it; the other is told that it was overtaken.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import millstream
from millstream.bench.objects import ObjectAnswer
from millstream.engine.slate.writer import GATHERED_AT_OPENING, REPLAYED_MAX
from millstream.errors import Fenced
from millstream.testing import Probe
from tests.integration.faulty_objects import values
from tests.kit.objects import Fault, ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.faults, pytest.mark.slow]

ROUNDS = 5
EACH = 90
"""Commits of a writer until it is killed: too few to be gathered by it."""

_WRITER = """
import os, signal, sys
import millstream

ms = millstream.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    ms.log("a").append(b"%d" % number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def replayed_by_a_killed_writer(proxy: ObjectProxy, address: str) -> int:
    """Open, count the commits that opening fetches, append, and be killed."""
    fetched: set[str] = set()

    def count(method: str, path: str) -> None:
        if method == "GET" and "/wal/" in path:
            fetched.add(path)

    proxy.script = count
    command = [sys.executable, "-c", _WRITER, address, str(EACH)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        proxy.script = None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        assert writer.wait() == -9
    return len(fetched)


def test_an_opening_after_many_kills_replays_no_more_than_after_one(
    proxy: ObjectProxy, address: str
) -> None:
    assert GATHERED_AT_OPENING < EACH < REPLAYED_MAX
    fetched = [replayed_by_a_killed_writer(proxy, address) for _ in range(ROUNDS)]
    assert max(fetched) < EACH + GATHERED_AT_OPENING, fetched
    before = proxy.requests
    with millstream.open(address) as ms:
        assert proxy.requests - before < 4 * (EACH + GATHERED_AT_OPENING)
        assert values(ms) == [b"%d" % number for number in range(EACH)] * ROUNDS


def test_commits_that_were_left_count_towards_the_next_gathering(
    proxy: ObjectProxy, address: str
) -> None:
    """A few are not worth an object of their own, and are not forgotten either."""
    with millstream.open(address) as ms:
        ms.log("a").append(b"first")
    command = [sys.executable, "-c", _WRITER, address, str(GATHERED_AT_OPENING // 2)]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    with millstream.open(address) as ms:
        behind = Probe(ms).store.engine.describe()["commits_to_replay"]
        assert GATHERED_AT_OPENING // 2 <= behind < GATHERED_AT_OPENING


def test_a_writer_that_is_overtaken_as_it_opens_is_told_so(
    proxy: ObjectProxy, address: str
) -> None:
    """The first one has its epoch, and is held before it fences; the second one opens meanwhile."""
    held, overtaken = threading.Event(), threading.Event()

    def script(method: str, path: str) -> Fault | ObjectAnswer | None:
        if method == "PUT" and "/wal/" in path and not held.is_set():
            held.set()
            overtaken.wait()
        return None

    told: list[BaseException] = []

    def open_first() -> None:
        try:
            millstream.open(address).close()
        except BaseException as error:
            told.append(error)

    with millstream.open(address) as ms:
        ms.log("a").append(b"before")
    proxy.script = script
    first = threading.Thread(target=open_first)
    first.start()
    assert held.wait(60)
    command = [sys.executable, "-c", _WRITER, address, "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second:
        assert second.stdin is not None
        assert second.stdout is not None
        opened = second.stdout.readline()
        overtaken.set()
        first.join()
        assert opened == b"open\n"
        second.stdin.close()  # now it writes: the first one has not fenced it
    (error,) = told
    assert isinstance(error, Fenced)
    assert "another process opened" in str(error)
    assert "credentials" not in str(error)
    with millstream.open(address, mode="r") as ms:
        assert values(ms) == [b"before", b"0", b"1"]
