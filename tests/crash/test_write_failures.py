"""What is promised when the disk fails under a commit, and proven here with a real one or a shim.

- What was acknowledged is there after reopening, at its offset.
- `WriteFailed` and `Overloaded` mean that nothing was stored; `OutcomeUnknown` that it may have been.
- After an unknown outcome the handle recovers by itself, reads go on, and nobody waits for ever.
- On a full disk reads go on, publishing is refused, and works again once there is room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import httpx
import pytest

import millstream
from millstream import Limits, Millstream, Producer, SqliteOptions
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import (
    CannotOpen,
    Closed,
    DiskFull,
    MillstreamError,
    OutcomeUnknown,
    Overloaded,
    Poisoned,
    Recovering,
    WriteFailed,
)
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.store.store import Store
from millstream.testing import Probe
from tests.crash.faulty_vfs import Fault, FaultyDisk, faulty_disk

pytestmark = pytest.mark.faults

FOLDS_OFTEN = Limits(
    inline_bytes_max=200,
    tail_deltas_max=5,
    fold_deltas_min=1_000,
    fold_slice_deltas=3,
)
"""Every few commits the writer folds on its own thread, so that faults hit folds as well."""

IMPATIENT = SqliteOptions(busy_timeout_ms=2_000)

HANGS_S = 60


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as found:
        yield found


def open_on(
    disk: FaultyDisk,
    path: Path,
    limits: Limits = FOLDS_OFTEN,
    options: SqliteOptions = IMPATIENT,
) -> Millstream:
    engine = SqliteEngine(path, vfs=disk.name, limits=limits, options=options)
    return Millstream(EmbeddedSession(open_store(engine, limits=limits)))


@dataclass
class Told:
    """What callers were told about each value."""

    stored: dict[int, bytes] = field(default_factory=dict)
    not_stored: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)

    def append(self, log: millstream.Log, value: bytes) -> type[MillstreamError] | None:
        try:
            self.stored[log.append(value)] = value
        except OutcomeUnknown as error:
            self.unknown.append(value)
            return type(error)
        except MillstreamError as error:
            self.not_stored.append(value)
            return type(error)
        return None

    def check(self, ms: Millstream) -> None:
        found = {record.offset: record.value for record in ms.log("x").read()}
        assert self.stored.items() <= found.items()
        assert not set(self.not_stored) & set(found.values())
        rest = [value for offset, value in found.items() if offset not in self.stored]
        assert set(rest) <= set(self.unknown)
        assert sorted(found) == list(range(len(found)))


def reopen_and_check(path: Path, told: Told) -> None:
    with millstream.open(path) as ms:
        told.check(ms)
        ms.fold()
        told.check(ms)
        with Probe(ms).store.engine.read() as rows:
            assert rows.connection.execute("PRAGMA integrity_check").get == "ok"
        told.append(ms.log("x"), b"life goes on")
        told.check(ms)


FAULTS = {
    "write fails": Fault("write", "-wal"),
    "write is torn": Fault("write", "-wal", torn=True),
    "disk is full": Fault("write", "-wal", error=apsw.FullError),
    "sync fails": Fault("sync", "-wal"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_failed_commit_is_unknown_and_the_handle_recovers(
    tmp_path: Path, disk: FaultyDisk, name: str
) -> None:
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path, Limits())
    log = ms.log("x")
    for i in range(5):
        told.append(log, b"before %d" % i)

    fault = FAULTS[name]
    disk.arm(Fault(fault.call, fault.suffix, error=fault.error, torn=fault.torn))
    assert told.append(log, b"during") is OutcomeUnknown

    told.check(ms)
    disk.mend()
    assert told.append(log, b"after") is None
    told.check(ms)
    assert len(told.stored) == 6
    assert ms.stats()["condition"] == "usable"
    ms.close()
    reopen_and_check(path, told)


SYNC_FAILS_THEN_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from millstream import Limits
from millstream.errors import OutcomeUnknown
from tests.crash.faulty_vfs import Fault, faulty_disk
from tests.crash.test_write_failures import open_on

with faulty_disk() as disk:
    log = open_on(disk, Path(sys.argv[1]), Limits()).log("x")
    for i in range(3):
        log.append(b"before %d" % i)
    disk.arm(Fault("sync", "-wal", once=True))
    try:
        log.append(b"in doubt")
    except OutcomeUnknown:
        pass
    for i in range(3):
        log.append(b"after %d" % i)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_failed_sync_the_handle_goes_on_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    root = str(Path(__file__).parents[2])
    done = run_script(SYNC_FAILS_THEN_KILLED, str(path), root)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3_000:]
    with millstream.open(path) as ms:
        values = [record.value for record in ms.log("x").read()]
    certain = [b"%s %d" % (word, i) for word in (b"before", b"after") for i in range(3)]
    assert [value for value in values if value != b"in doubt"] == certain


def test_a_commit_that_failed_does_not_come_back_once_readers_saw_it_missing(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """Its frames are whole in the write-ahead log: without care a crash would revive it."""
    path = tmp_path / "a.db"
    ms = open_on(disk, path, Limits())
    log = ms.log("x")
    log.append(b"before")
    disk.arm(Fault("sync", "-wal", once=True))
    with pytest.raises(OutcomeUnknown):
        log.append(b"in doubt")
    store = Probe(ms).store
    store.recovery.attempt()
    seen = [record.value for record in log.read()]
    crashed = tmp_path / "crashed.db"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{crashed}{suffix}")
    with millstream.open(crashed) as after:
        assert [record.value for record in after.log("x").read()] == seen
    ms.close()


def test_a_log_that_lost_frames_under_a_failed_sync_ends_the_handle(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """The operating system has dropped pages that it could not write."""
    path = tmp_path / "a.db"
    ms = open_on(disk, path, Limits())
    log = ms.log("x")
    Probe(ms).pause_keeper()
    for i in range(5):
        log.append(b"before %d" % i)
    disk.arm(Fault("sync", "-wal", once=True))
    with pytest.raises(OutcomeUnknown):
        log.append(b"in doubt")
    with Path(f"{path}-wal").open("r+b") as file:
        file.seek(-20_000, os.SEEK_END)
        file.write(bytes(4_096))
    with pytest.raises(Poisoned, match="of the write-ahead log are as written"):
        log.append(b"after")
    with pytest.raises(Poisoned):
        list(log.read())
    ms.close()


@pytest.mark.parametrize("once", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize(
    ("call", "suffix"),
    [("write", "-wal"), ("sync", "-wal"), ("read", "-wal"), ("read", ".db")],
    ids=["write", "sync", "read of the log", "read of the file"],
)
def test_whichever_call_fails_callers_are_told_the_truth(
    tmp_path: Path, call: str, suffix: str, once: bool
) -> None:
    """Sweeps the fault over the calls of commits and of the folds between them."""
    for n in range(1, 40):
        path, told = tmp_path / f"{n}.db", Told()
        with faulty_disk() as disk, millstream.open(path) as neighbour:
            ms = open_on(disk, path)
            for i in range(4):
                told.append(ms.log("x"), b"before %d" % i)
            fault = disk.arm(Fault(call, suffix, n=n, torn=n % 2 == 0, once=once))
            for i in range(8):
                told.append(ms.log("x"), b"%d " % i * (1 + i % 3 * 100))
                neighbour.log("y").append(b"so that pages must be read again")
            disk.mend()
            ms.close()
        reopen_and_check(path, told)
        if fault.seen < n:
            break
    assert n > 3, "the fault was hardly ever reached"


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failed_checkpoint_harms_no_commit(tmp_path: Path, disk: FaultyDisk, call: str) -> None:
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path)
    engine = Probe(ms).store.engine
    told.append(ms.log("x"), b"before")
    disk.arm(Fault(call, ".db", error=apsw.FullError))
    with pytest.raises(WriteFailed):
        engine.checkpoint(nullcontext())
    assert told.append(ms.log("x"), b"meanwhile") is None
    disk.mend()
    engine.checkpoint(nullcontext())
    assert told.append(ms.log("x"), b"after") is None
    ms.close()
    reopen_and_check(path, told)


def test_after_a_failed_sync_of_a_checkpoint_the_handle_recovers(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """What the sync was for may not be on disk, although the next one would succeed."""
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path, Limits(), SqliteOptions(wal_bytes_checkpoint=1))
    store = Probe(ms).store
    store.pause_keeper()
    told.append(ms.log("x"), b"before")
    disk.arm(Fault("sync", ".db", once=True))
    with pytest.raises(OutcomeUnknown):
        store._keep()
    assert store.condition == "recovering"
    told.check(ms)
    assert told.append(ms.log("x"), b"after") is None
    assert store.condition == "usable"
    ms.close()
    reopen_and_check(path, told)


def test_what_never_reached_the_disk_fails_plainly_and_can_be_repeated(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """Another process keeps the write lock: nothing was sent, and the handle lives on."""
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path, Limits(), SqliteOptions(busy_timeout_ms=50))
    told.append(ms.log("x"), b"before")
    other = apsw.Connection(str(path))
    other.set_busy_timeout(60_000)
    other.execute("BEGIN IMMEDIATE")
    assert told.append(ms.log("x"), b"during") is Overloaded
    other.execute("ROLLBACK")
    other.close()
    assert told.append(ms.log("x"), b"after") is None
    ms.close()
    reopen_and_check(path, told)


def test_a_failed_fold_fails_no_commit(tmp_path: Path, disk: FaultyDisk) -> None:
    """The commit was durable before its fold began: its caller is answered."""
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path)
    log = ms.log("x")
    for i in range(4):
        told.append(log, b"before %d" % i)
    assert ms.stats()["fold_slices"] == 0
    disk.arm(Fault("sync", "-wal", n=2))  # the first sync is the commit's, the second the fold's
    assert told.append(log, b"committed, then folded") is None
    disk.mend()
    assert told.append(log, b"after") is None
    ms.close()
    reopen_and_check(path, told)


def test_a_failing_disk_strands_no_waiting_thread(tmp_path: Path, disk: FaultyDisk) -> None:
    path = tmp_path / "a.db"
    ms = open_on(disk, path, Limits())
    log = ms.log("x")
    told = [Told() for _ in range(8)]
    started = threading.Barrier(len(told) + 1)

    def append(number: int) -> None:
        started.wait()
        for i in range(10_000):
            if told[number].append(log, b"%d.%d" % (number, i)) is not None:
                break

    waiter_ended = threading.Event()

    def wait() -> None:
        started.wait()
        with pytest.raises(Closed):
            log.wait(10**9)  # through the failure, until the handle is closed
        waiter_ended.set()

    threads = [threading.Thread(target=append, args=(n,), daemon=True) for n in range(7)]
    waiter = threading.Thread(target=wait, daemon=True)
    for thread in [*threads, waiter]:
        thread.start()
    started.wait()
    assert log.wait(50, timeout=HANGS_S)
    disk.arm(Fault("sync", "-wal"))
    for thread in threads:
        thread.join(HANGS_S)
    assert not any(thread.is_alive() for thread in threads)
    disk.mend()
    ms.close()
    waiter.join(HANGS_S)
    assert waiter_ended.is_set()
    together = Told()
    for one in told:
        assert not one.stored.keys() & together.stored.keys()
        together.stored |= one.stored
        together.not_stored += one.not_stored
        together.unknown += one.unknown
    assert together.unknown
    reopen_and_check(path, together)


def test_after_an_unknown_outcome_a_repeat_under_its_sequence_is_stored_once(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    path = tmp_path / "a.db"
    for n in range(1, 6):  # whether the failed commit survives depends on where it failed
        ms = open_on(disk, path)
        disk.arm(Fault("sync" if n % 2 else "write", "-wal", n=n, torn=True))
        sequence = ms.log("x").end_offset()
        lost: list[int] = []
        for number in range(sequence, sequence + 3):
            try:
                ms.log("x").append(b"%d" % number, producer=Producer("p", number))
            except (OutcomeUnknown, WriteFailed):
                lost = list(range(number, sequence + 3))
                break
        disk.mend()
        for number in lost[:1]:
            assert ms.log("x").append(b"%d" % number, producer=Producer("p", number)) == number
        ms.close()
        with millstream.open(path) as ms:
            for number in lost:
                log = ms.log("x")
                assert log.append(b"%d" % number, producer=Producer("p", number)) == number
            assert [r.value for r in log.read()] == [b"%d" % i for i in range(sequence + 3)]


def test_closing_on_a_full_disk_lets_go_of_the_file(tmp_path: Path, disk: FaultyDisk) -> None:
    """A fold that fails at the end loses nothing: the handle closes all the same."""
    path, told = tmp_path / "a.db", Told()
    ms = open_on(disk, path, Limits(fold_deltas_min=100))
    for i in range(100):
        told.append(ms.log("x"), b"%d" % i)
    Probe(ms).store.limits = Limits(fold_deltas_min=5)
    disk.arm(Fault("write", "-wal", error=apsw.FullError, once=True))
    with contextlib.suppress(WriteFailed, OutcomeUnknown):
        ms.close()
    disk.mend()
    with pytest.raises(millstream.errors.Closed):
        ms.log("x").append(b"late")
    reopen_and_check(path, told)


INTERRUPTED = """
import faulthandler, signal, sys, threading
import millstream

faulthandler.dump_traceback_later({hangs_s}, exit=True)

class Interrupt(BaseException): ...

def ring(*_): raise Interrupt

signal.signal(signal.SIGALRM, ring)
ms = millstream.open(sys.argv[1])
log = ms.log("x")
stop = threading.Event()
acknowledged = []

def append():
    try:
        while not stop.is_set():
            acknowledged.append(log.append(b"x"))
    except millstream.MillstreamError:
        pass  # poisoned by the interrupted commit: told so, not stranded

threads = [threading.Thread(target=append) for _ in range(3)]
for thread in threads:
    thread.start()
for i in range(30):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + i * 0.0003)
        while True:
            acknowledged.append(log.append(b"x"))
    except Interrupt:
        pass
    except millstream.MillstreamError:
        signal.setitimer(signal.ITIMER_REAL, 0)
        break
stop.set()
for thread in threads:
    thread.join()
try:
    ms.close()
except millstream.MillstreamError:
    pass
with millstream.open(sys.argv[1]) as ms:
    found = len(ms.log("x"))
assert len(set(acknowledged)) == len(acknowledged)
assert not acknowledged or max(acknowledged) < found, (max(acknowledged), found)
print("fine")
"""


def test_an_interrupted_leader_strands_nobody(tmp_path: Path) -> None:
    """Ctrl-C hits the main thread while it commits for the others."""
    done = run_script(INTERRUPTED.format(hangs_s=8), str(tmp_path / "a.db"))
    assert done.stdout.strip() == "fine", done.stderr[-3_000:]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(millstream.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_real_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    path, told = small_disk / "a.db", Told()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))  # so much the log may take when it is copied at last
    with contextlib.suppress(MillstreamError), millstream.open(path, limits=FOLDS_OFTEN) as ms:
        failures = 0
        for i in range(10_000):
            failed = told.append(ms.log("x"), b"%d " % i + bytes(i % 7 * 3_000))
            failures += failed is not None
            if failures >= 3:
                break
    assert told.unknown or told.not_stored, "the disk never became full"
    assert told.stored
    ballast.unlink()
    reopen_and_check(path, told)


def fill(place: Path) -> Path:
    """Leave no room at all; the file to delete to have it back."""
    ballast = place / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))
    return ballast


def until_full(store: Store) -> None:
    """The room is asked for every few milliseconds."""
    while store.condition != "disk_full":
        os.sched_yield()


@pytest.mark.parametrize(
    "reserve", [Limits().disk_free_bytes_min, 0], ids=["reserve", "no reserve"]
)
def test_a_handle_on_a_full_disk_reads_and_goes_on_once_there_is_room(
    small_disk: Path, reserve: int
) -> None:
    path, told = small_disk / "a.db", Told()
    with millstream.open(path, limits=Limits(disk_free_bytes_min=reserve)) as ms:
        log = ms.log("x")
        for i in range(20):
            assert told.append(log, b"%d" % i) is None
        ballast = fill(small_disk)
        if reserve:
            until_full(Probe(ms).store)
        failures = [told.append(log, b"full %d" % i + bytes(9_000)) for i in range(50)]
        assert {one for one in failures if one} <= {
            DiskFull,
            OutcomeUnknown,
            Recovering,
            WriteFailed,
        }
        assert failures[-1] is not None
        told.check(ms)
        if reserve:
            assert set(failures) == {DiskFull}
            assert ms.stats()["condition"] == "disk_full"
        ballast.unlink()
        Probe(ms).store.recovery.attempt()
        while (failed := told.append(log, b"room again")) is not None:
            assert failed is Recovering
        told.check(ms)
    reopen_and_check(path, told)


def test_a_server_on_a_full_disk_answers_507_reads_and_goes_on_once_there_is_room(
    small_disk: Path,
) -> None:
    with (
        running(small_disk / "a.db", Settings(port=0)) as server,
        httpx.Client(timeout=60) as client,
    ):
        place = f"{server.url}/logs/x/records"

        def publish() -> httpx.Response:
            return client.post(place, content=b"value", headers={"content-type": "text/plain"})

        def health() -> dict[str, str]:
            checks = client.get(f"{server.url}/health").json()["checks"]
            return {check["name"]: check["detail"] for check in checks}

        with millstream.open(server.url) as ms:
            log = ms.log("x")
            for i in range(5):
                log.append(b"%d" % i)
            ballast = fill(small_disk)
            assert server.core is not None
            until_full(server.core.store)
            refused = publish()
            assert refused.status_code == 507
            problem = refused.json()
            assert (problem["title"], problem["retry"]) == ("DiskFull", True)
            assert problem["data"]["free_bytes"] == 0
            assert "retry-after" in refused.headers
            with pytest.raises(DiskFull, match="Free space on"):
                log.append(b"refused")
            assert [record.value for record in log.read()] == [b"%d" % i for i in range(5)]
            assert "is full" in health()["store"]
            ballast.unlink()
            assert log.append(b"5") == 5
            assert publish().status_code < 300
            assert len(log) == 7
        with millstream.open(small_disk / "a.db") as ms:
            assert [record.value for record in ms.log("x").read()][:6] == [
                b"%d" % i for i in range(6)
            ]


def test_a_folder_that_cannot_be_synced_is_told_and_synced_by_the_next_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    synced: list[list[str]] = []
    fails, fsync = [True], os.fsync

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            if fails.pop() if fails else False:
                raise OSError(errno.EIO, "Input/output error")
            synced.append(sorted(one.name for one in tmp_path.iterdir()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(CannotOpen, match=r"could not be synced \(Input/output error\)"):
        millstream.open(path)
    assert not synced
    with millstream.open(path) as ms:
        assert synced, "the sync that failed was not repeated"
        assert {"a.db", "a.db-wal"} <= set(synced[0])  # the names of both are durable
        ms.log("x").append(b"x")


def test_a_store_on_a_full_disk_can_be_read_or_says_why_not(small_disk: Path) -> None:
    path, told = small_disk / "a.db", Told()
    with millstream.open(path) as ms:
        for i in range(20):
            told.append(ms.log("x"), b"%d" % i)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))
    try:
        with millstream.open(path) as ms:
            told.check(ms)
    except MillstreamError as error:
        assert str(path) in str(error)  # noqa: PT017
    ballast.unlink()
    reopen_and_check(path, told)
