"""A backup and a restore that are killed at every step that they take in the file system.

Promised, wherever the kill comes:
- the store opens, and has all of its commits;
- every point that is there can be restored, and the next run adds its point;
- a restore leaves the old store or the restored one under the name, and the next run completes;
- a repair leaves the damaged file or the repaired one under the name, and the damaged file is kept.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import millstream
from millstream.backup.follow import following
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.run import back_up
from millstream.backup.verify import verify
from millstream.doctor.donor import open_donor
from millstream.doctor.repair import apply_repair
from millstream.engine.copy import copy_store
from millstream.engine.open import open_engine
from millstream.engine.sqlite.engine import SqliteEngine

pytestmark = pytest.mark.faults

STEPS = ("open", "mkdir", "fdatasync", "fsync", "rename", "link", "unlink", "pwrite", "ftruncate")
STEPS_MAX = 300


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run work in a forked process that is killed before a step; False if it ends before."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return True
        assert os.waitstatus_to_exitcode(status) == 0
        return False
    try:
        _count_steps(step)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def _count_steps(step: int) -> None:
    """Kill this process at a step in the file system."""
    left = step

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return run

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


def values_of(path: Path) -> list[bytes]:
    with millstream.open(path) as ms:
        return [record.value for record in ms.log("x").read()]


def filled(path: Path, *values: bytes) -> None:
    with millstream.open(path) as ms:
        for value in values:
            ms.log("x").append(value)


def test_a_backup_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "backup"
    filled(store, b"0", b"1" * 300_000)
    step = 1
    while killed_at(step, lambda: back_up(store, place)):
        assert step < STEPS_MAX
        if place.exists() and (place / "millstream-backup.json").exists():
            assert verify(place).damage == []
        step += 1
    assert step > 10
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")
    assert values_of(tmp_path / "b.db") == values_of(store) == [b"0", b"1" * 300_000]


def test_a_backup_with_a_retention_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "backup"
    filled(store, b"0")
    back_up(store, place)
    step, expected = 1, [b"0"]
    while True:
        value = os.urandom(300_000)
        filled(store, value)
        expected.append(value)
        was_killed = killed_at(step, lambda: back_up(store, place, keep=Keep(newest=1)))
        assert verify(place).damage == []
        assert values_of(store) == expected
        if not was_killed:
            break
        assert step < STEPS_MAX
        step += 3  # each step grows the store
    assert len(BackupPlace(place).points()) == 1
    restore(place, tmp_path / "b.db")
    assert values_of(tmp_path / "b.db") == expected


def test_a_restore_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "backup"
    filled(store, b"0", b"1" * 300_000)
    back_up(store, place)
    filled(store, b"later")
    before, after = [b"0", b"1" * 300_000, b"later"], [b"0", b"1" * 300_000]
    step = 1
    while killed_at(step, lambda: restore(place, store, replace=True)):
        assert step < STEPS_MAX
        found = values_of(store)
        assert found in (before, after)
        if found == after:  # killed behind the exchange: the old store is aside
            asides = [path for path in tmp_path.glob("a.db.aside-*") if "-wal" not in path.name]
            assert before in [values_of(path) for path in asides]
        step += 1
    assert step > 5
    assert values_of(store) == after
    assert verify(place).damage == []


def test_a_restore_of_a_followed_commit_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "backup"
    filled(store, b"0")
    engine = cast(SqliteEngine, open_engine(store, mode="r"))
    with closing(engine), following(engine, BackupPlace(place)) as follower:
        follower.step()
        filled(store, b"1", b"2" * 10_000)
        with engine.read() as snapshot:
            seq = snapshot.last_seq()  # a commit in the middle of a segment
        filled(store, b"later")
        follower.step()
    before, after = [b"0", b"1", b"2" * 10_000, b"later"], [b"0", b"1", b"2" * 10_000]
    moment = RestoreMoment(seq=seq)
    step = 1
    while killed_at(step, lambda: restore(place, store, at=moment, replace=True)):
        assert step < STEPS_MAX
        found = values_of(store)
        assert found in (before, after)
        if found == after:  # killed behind the exchange: the old store is aside
            asides = [path for path in tmp_path.glob("a.db.aside-*") if "-wal" not in path.name]
            assert before in [values_of(path) for path in asides]
        step += 1
    assert step > 5
    assert values_of(store) == after
    assert verify(place).damage == []


def test_a_repair_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, copy = tmp_path / "a.db", tmp_path / "copy.db"
    filled(store, b"0", b"1" * 300_000)
    expected = values_of(store)
    copy_store(str(store), str(copy))
    with closing(apsw.Connection(str(store))) as file:
        file.execute(
            "UPDATE millstream_payload SET value = zeroblob(length(value)) "
            "WHERE length(value) > 100000"
        )
        assert file.changes() == 1
    damaged = store.read_bytes()

    def repair() -> None:
        with open_donor(str(copy), folder=tmp_path) as donor:
            apply_repair(store, donor)

    step = 1
    while killed_at(step, repair):
        assert step < STEPS_MAX
        if store.read_bytes() != damaged:  # killed behind the exchange: the damaged file is aside
            assert values_of(store) == expected
            assert damaged in [path.read_bytes() for path in tmp_path.glob("a.db.aside-*")]
        step += 1
    assert step > 5
    assert values_of(store) == expected


def test_a_follower_that_is_killed_at_every_step(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "backup"
    filled(store, b"0")

    def follow() -> None:
        engine = cast(SqliteEngine, open_engine(store, mode="r"))
        with following(engine, BackupPlace(place)) as follower:
            follower.step()
            filled(store, b"1", b"2" * 10_000)
            follower.step()
        engine.close()

    step = 1
    while killed_at(step, follow):
        assert step < STEPS_MAX
        if (place / "millstream-backup.json").exists():
            assert verify(place).damage == []
        step += 1
    assert step > 10
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")
    assert values_of(tmp_path / "b.db") == values_of(store)
