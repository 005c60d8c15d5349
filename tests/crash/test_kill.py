"""What survives kill -9. After each kill, and again after a fold:

- what was acknowledged is there, byte for byte, at its offset; nothing is there twice;
- what was not acknowledged is there whole, or not at all;
- a cursor has every acknowledged position, and none that nobody asked for;
- both halves of a transaction are there, or neither.

MILLSTREAM_SEED=<seed> repeats the moments at which a failed run killed, as closely as the
machine's scheduler allows.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import APPLICATION_ID, PAGE_BYTES
from millstream.errors import CannotOpen
from millstream.testing import Probe
from tests.crash import appender
from tests.crash.faulty_vfs import Fault, FaultyDisk

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = 15
CREATIONS = 60
CLOSINGS = 40
HANGS_S = 60


class PictureDisk(FaultyDisk):
    """A disk that copies a store's files before each call: what a kill there would leave."""

    def __init__(self, path: Path, copies: Path) -> None:
        super().__init__()
        self._path, self._copies = path, copies
        self.taken: list[Path] = []

    def look(self, call: str, name: str) -> Fault | None:
        if call != "read":
            copy = self._copies / f"{len(self.taken)}.db"
            for suffix in ("", "-journal", "-wal"):
                if (file := Path(f"{self._path}{suffix}")).exists():
                    shutil.copyfile(file, f"{copy}{suffix}")
            self.taken.append(copy)
        return super().look(call, name)


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ["MILLSTREAM_SEED"])
    print(f"replay with MILLSTREAM_SEED={chosen}")  # shown by pytest if the test fails
    return chosen


@dataclass
class Told:
    """What the killed processes reported."""

    appends: dict[str, tuple[int, int]] = field(default_factory=dict)
    pairs: dict[str, tuple[int, int]] = field(default_factory=dict)
    tried: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, words: list[Any]) -> None:
        match words:
            case ["ack", "append", tag, count, first]:
                assert tag not in self.appends
                self.appends[tag] = (count, first)
            case ["ack", "both", tag, first, second]:
                self.pairs[tag] = (first, second)
            case ["try", "cursor", name, offset]:
                self.tried[name].add(offset)
            case ["ack", "cursor", name, offset]:
                self.acked[name].add(offset)
            case _:
                assert words == ["ready"], words

    def check(self, ms: Millstream) -> None:
        log, quiet = ms.log(appender.LOG), ms.log(appender.OTHER)
        places = self._check_records(log)
        others = self._check_records(quiet)
        for tag, (count, first) in self.appends.items():
            assert places.get(tag) == (first, count), tag
        for tag, (first, second) in self.pairs.items():
            assert places.get(f"{tag}.t") == (first, 1)
            assert others.get(f"{tag}.q") == (second, 1)
        halves = {tag[:-2] for tag in places if tag.endswith(".t")}
        assert halves == {tag[:-2] for tag in others}
        for name, tried in self.tried.items():
            info = log.cursor(name).info()
            stand = {offset for span in info.ranges for offset in range(*span)}
            stand |= set(range(info.floor))
            assert self.acked[name] <= stand <= tried

    def _check_records(self, log: millstream.Log) -> dict[str, tuple[int, int]]:
        """Every record is whole, and every batch complete and in one piece."""
        places: dict[str, tuple[int, int]] = {}
        expected = 0
        missing: list[tuple[str, int, int]] = []
        for record in log.read():
            assert record.offset == expected
            expected += 1
            found = appender.parse(record.value)
            if missing:
                assert found == missing.pop(0)
                continue
            tag, index, count = found
            assert index == 0
            assert tag not in places, f"{tag} is there twice"
            places[tag] = (record.offset, count)
            missing = [(tag, following, count) for following in range(1, count)]
        assert not missing, "a batch is cut"
        assert expected == log.end_offset()
        return places


def run_until_killed(path: Path, told: Told, *, number: int, seed: int) -> None:
    """Run an appender, and kill it after it has reported a random number of lines."""
    chance = random.Random(f"{seed}.{number}")
    lines_left = chance.choice((1, 3, 20, 100, 200)) + chance.randrange(20)
    with start_appender(path, seed, number) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                told.hear(json.loads(line))
                lines_left -= 1
                if lines_left == 0:
                    for _ in range(chance.randrange(20_000)):
                        pass  # so that the kill does not always follow an acknowledgement
                    child.send_signal(signal.SIGKILL)
        finally:
            child.kill()
    assert lines_left <= 0, "the appender ended by itself"
    assert child.returncode == -signal.SIGKILL


def start_appender(path: Path, seed: int, number: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    source = Path(millstream.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, appender.__file__, str(path), str(seed), str(number)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(root)))},
    )


def check_store(ms: Millstream) -> None:
    with Probe(ms).store.engine.read() as rows:
        assert rows.connection.execute("PRAGMA integrity_check").get == "ok"


def test_nothing_acknowledged_is_lost_however_often_the_writer_is_killed(
    tmp_path: Path, seed: int
) -> None:
    path, told = tmp_path / "a.db", Told()
    for number in range(ROUNDS):
        run_until_killed(path, told, number=number, seed=seed)
        with millstream.open(path) as ms:
            told.check(ms)
            if number % 3 == 2:
                ms.fold()
                told.check(ms)
    with millstream.open(path) as ms:
        check_store(ms)
        ms.fold()
        told.check(ms)
        ms.log(appender.LOG).append(appender.body("afterwards", 0, 1))
    with millstream.open(path) as ms:
        told.check(ms)
    assert len(told.appends) > ROUNDS
    assert told.acked


KILLER = """
import os, random, signal, sys, time
import millstream, millstream.embedded.session, millstream.engine.sqlite.engine
from millstream import Limits
from millstream.testing import Probe

directory, seed, rounds, what = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def create(path, report):
    ms = millstream.open(path)
    os.write(report, b"%d\\n" % ms.log("x").append(b"first"))
    signal.pause()

def close(path, report):
    ms = millstream.open(path, limits=Limits(fold_deltas_min=20, fold_slice_deltas=3))
    for i in range(40):
        os.write(report, b"%d\\n" % ms.log("x").append(b"%d" % os.getpid()))
    os.write(report, b"closing\\n")
    ms.close()
    signal.pause()

work = {"create": create, "close": close}[what]
for number in range(rounds):
    chance = random.Random(f"{seed}.{number}")
    path = os.path.join(directory, f"{number if what == 'create' else 0}.db")
    heard, report = os.pipe()
    child = os.fork()
    if not child:
        try:
            work(path, report)
        finally:
            os._exit(1)
    os.close(report)
    lines = b""
    if what == "close":
        while b"closing" not in lines:
            lines += os.read(heard, 65536)
    span_s = 0.02 if what == "create" else 0.01
    end = time.perf_counter() + chance.random() ** 2 * span_s
    while time.perf_counter() < end:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while some := os.read(heard, 65536):
        lines += some
    os.close(heard)
    acknowledged = [int(line) for line in lines.split() if line != b"closing"]
    with millstream.open(path) as ms:
        found = ms.log("x").end_offset()
        assert found > max(acknowledged, default=-1), (number, found, acknowledged)
        if what == "close":
            pids = [int(record.value) for record in ms.log("x").read()]
            assert len(pids) == 40 * (number + 1) and set(pids[-40:]) == {child}, number
        else:
            assert found <= 1 and ms.log("x").append(b"again") == found, number
            with Probe(ms).store.engine.read() as rows:
                assert rows.connection.execute("PRAGMA integrity_check").get == "ok"
    print(number, "acknowledged" if acknowledged else "nothing")
"""


def run_killer(directory: Path, seed: int, rounds: int, what: str) -> list[str]:
    source = Path(millstream.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(directory), str(seed), str(rounds), what],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


def test_a_file_opens_after_a_kill_before_any_write_of_its_creation(tmp_path: Path) -> None:
    path, copies = tmp_path / "new.db", tmp_path / "copies"
    copies.mkdir()
    disk = PictureDisk(path, copies)
    try:
        engine = SqliteEngine(path, vfs=disk.name)
        engine.close()
    finally:
        disk.unregister()
    cut = [one for one in disk.taken if one.exists() and 0 < one.stat().st_size < 8 * PAGE_BYTES]
    ours = [one for one in cut if one.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")]
    assert ours, "no kill came between the first page and the last"
    for copy in cut:  # before our first page, it is an SQLite file without tables
        why = "was being created" if copy in ours else "not a Millstream store"
        with pytest.raises(CannotOpen, match=why):
            examine(copy)
    for copy in disk.taken:
        with millstream.open(copy) as ms:
            assert ms.log("x").append(b"first") == 0
            with Probe(ms).store.engine.read() as rows:
                assert rows.connection.execute("PRAGMA integrity_check").get == "ok"
        assert not Path(f"{copy}-journal").exists(), copy.name


def test_a_file_killed_while_it_is_created_opens_afterwards(tmp_path: Path, seed: int) -> None:
    lines = run_killer(tmp_path, seed, CREATIONS, "create")
    assert len(lines) == CREATIONS
    assert any("nothing" in line for line in lines), "no kill came before the first commit"


def test_a_kill_while_closing_loses_nothing(tmp_path: Path, seed: int) -> None:
    assert len(run_killer(tmp_path, seed, CLOSINGS, "close")) == CLOSINGS
