"""Several processes on one file: nothing lost, nothing twice, everybody sees everybody's commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Limits
from millstream.testing import Probe
from tests.integration import neighbour
from tests.integration.neighbour import FOLDS_ALWAYS

pytestmark = pytest.mark.slow

HANGS_S = 90


class Neighbour:
    """A process that plays a part; `go` lets it begin, `report` waits for its end."""

    def __init__(self, path: Path, part: str, *arguments: object, open_early: bool = True) -> None:
        root, source = Path(__file__).parents[2], Path(millstream.__file__).parents[1]
        self.process = subprocess.Popen(
            [sys.executable, neighbour.__file__, str(path), part, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(source), str(root))),
                "OPEN_EARLY": "1" if open_early else "0",
            },
        )

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == word, f"{line!r}: {self.process.communicate(timeout=HANGS_S)[1]}"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def report(self, within_s: float = HANGS_S) -> Any:
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"a process hangs: {self.process.communicate()[1]}")
        assert self.process.returncode == 0, err
        assert "locked" not in err
        return json.loads(out)


@pytest.fixture
def start() -> Iterator[Any]:
    with ExitStack() as stack:

        def begin(*arguments: Any, **options: Any) -> Neighbour:
            found = Neighbour(*arguments, **options)
            stack.callback(found.process.__exit__, None, None, None)
            stack.callback(found.process.kill)
            found.hear("ready")
            return found

        yield begin


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ["MILLSTREAM_SEED"])
    print(f"replay with MILLSTREAM_SEED={chosen}")  # shown by pytest if the test fails
    return chosen


def let_go(*neighbours: Neighbour) -> list[Any]:
    for one in neighbours:
        one.go()
    return [one.report() for one in neighbours]


def test_four_processes_lose_nothing_and_see_each_other(
    tmp_path: Path, start: Any, seed: int
) -> None:
    path, count = tmp_path / "a.db", 600
    names = [f"p{i}" for i in range(4)]
    reports = let_go(*[start(path, "mix", name, count, seed) for name in names])

    expected: dict[int, bytes] = {}
    acked: set[int] = set()
    for name, report in zip(names, reports, strict=True):
        for first, numbers in report["appended"].items():
            for offset, number in enumerate(numbers, int(first)):
                assert offset not in expected, f"offset {offset} was given out twice"
                expected[offset] = neighbour.value(name, number)
        acked |= set(report["acked"])
    with millstream.open(path) as ms:
        for _ in range(2):
            log = ms.log("events")
            found = {record.offset: record.value for record in log.read()}
            assert found == expected
            for name, report in zip(names, reports, strict=True):
                assert log.cursor(name).floor() == report["position"]
            shared = log.cursor("shared").info()
            marked = set(range(shared.floor)).union(*(range(*span) for span in shared.ranges))
            assert marked == acked
            ms.fold()
        with Probe(ms).store.engine.read() as rows:
            assert rows.connection.execute("PRAGMA integrity_check").get == "ok"


def test_a_process_that_only_reads_sees_every_commit_once_and_stays_small(
    tmp_path: Path, start: Any, seed: int
) -> None:
    path, total = tmp_path / "a.db", 400
    reader = start(path, "follow", total)
    reader.go()
    with millstream.open(path, limits=FOLDS_ALWAYS) as ms:
        for number in range(total):
            ms.log("events").append(neighbour.value("w", number))
    report = reader.report(within_s=20)  # far less than its own timeout
    assert report["in_order"]
    assert report["held"] < total / 2, "the reader keeps rows that were folded long ago"


def test_processes_may_all_create_the_same_file_at_once(tmp_path: Path, start: Any) -> None:
    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        crowd = [start(path, "leave", 3, open_early=False) for _ in range(5)]
        offsets = [offset for report in let_go(*crowd) for offset in report["offsets"]]
        assert sorted(offsets) == list(range(15))


LOCK_OUT = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
    except BlockingIOError:
        print("in use")
    else:
        print("free")
"""
"""Asks for SQLite's exclusive lock, as the last process to close a file does."""


def test_a_second_handle_does_not_give_away_the_locks_of_the_first(tmp_path: Path) -> None:
    """POSIX drops all locks of a process on a file when it closes any descriptor of it."""
    path = tmp_path / "a.db"

    def ask() -> str:
        script = [sys.executable, "-c", LOCK_OUT, str(path)]
        return subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()

    with millstream.open(path) as ms:
        ms.log("x").append(b"v")
        assert ask() == "in use"
        with millstream.open(path) as second:
            assert second.log("x").end_offset() == 1
            assert ask() == "in use"
        assert ms.log("x").append(b"w") == 1
        assert ask() == "in use"
    assert ask() == "free"


def test_a_process_that_ends_without_closing_loses_nothing(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "a.db"
    (report,) = let_go(start(path, "leave", 100))
    with millstream.open(path) as ms:
        assert [r.offset for r in ms.log("events").read()] == report["offsets"]


def test_compare_and_set_has_one_winner_for_each_offset(tmp_path: Path, start: Any) -> None:
    path, until = tmp_path / "a.db", 150
    names = ["a", "b", "c"]
    reports = let_go(*[start(path, "compete", name, until) for name in names])
    winners = {
        offset: name
        for name, report in zip(names, reports, strict=True)
        for offset in report["won"]
    }
    assert sum(len(report["won"]) for report in reports) == len(winners) >= until
    with millstream.open(path) as ms:
        assert {r.offset: r.text for r in ms.log("race").read()} == winners


def test_an_append_repeated_by_another_process_is_stored_once(tmp_path: Path, start: Any) -> None:
    path, count = tmp_path / "a.db", 60
    (first,) = let_go(start(path, "produce", count))
    assert first["offsets"] == list(range(count))
    for report in let_go(*[start(path, "produce", count) for _ in range(3)]):
        assert report["offsets"] == list(range(count))
    with millstream.open(path) as ms:
        assert [r.value for r in ms.log("produced").read()] == [b"%d" % i for i in range(count)]


def test_a_wait_ends_when_another_process_commits(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "a.db"
    waiter = start(path, "wait", "news", 0)
    waiter.go()
    waiter.hear("waiting")
    with millstream.open(path) as ms:
        ms.log("news").append(b"it happened")
        assert waiter.report() == {"came": True}


def test_a_wait_ends_even_if_the_commit_was_folded_before_the_waiter_looked(
    tmp_path: Path, start: Any
) -> None:
    """The waiter is stopped meanwhile; what it waits for is in no delta any more when it goes on."""
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        ms.log("news").append(b"old")
        waiter = start(path, "wait", "news", 1)
        waiter.go()
        waiter.hear("waiting")
        waiter.process.send_signal(signal.SIGSTOP)
        ms.log("news").append(b"it happened")
        for i in range(3):
            ms.log("something else").append(b"%d" % i)
        ms.fold()
        waiter.process.send_signal(signal.SIGCONT)
        assert waiter.report(within_s=10) == {"came": True}


def test_a_process_that_lagged_behind_a_fold_sees_every_commit_once(tmp_path: Path) -> None:
    """Two handles in one process are as far apart as two processes are."""
    path = tmp_path / "a.db"
    with (
        millstream.open(path, limits=FOLDS_ALWAYS) as busy,
        millstream.open(path, limits=Limits(fold_deltas_min=10_000)) as lagging,
    ):
        log, other = busy.log("events"), lagging.log("events")
        cursor, same = log.cursor("c"), other.cursor("c")
        for distance in (1, 2, 5, 40, 1, 0, 3, 100):
            for number in range(distance):
                offset = log.append(b"%d" % number)
                log.append_many([b"a", b"b"])
                cursor.ack(offset)
            if distance != 3:
                busy.fold()
            assert other.append(b"mine") == log.end_offset() - 1
            assert list(other.read()) == list(log.read())
            same.reset()
            assert other.cursor("c").info() == log.cursor("c").info()
            assert busy.log("events").info() == lagging.log("events").info()
            lagging.fold()
        assert log.end_offset() == 3 * 152 + 8
