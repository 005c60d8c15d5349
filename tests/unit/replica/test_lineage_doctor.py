"""What the doctor says of forks and hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine
from millstream.format import keys
from millstream.replica import commands as r
from millstream.replica.chain import Mark
from tests.unit.replica.stores import (
    ask,
    drop_bytes,
    fill,
    store_of,
    summary,
)


def test_the_doctor_knows_chains_and_copies(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms)
        summary(ms)
        ms.log("a").fork("b").append_many([b"x"] * 2_000)
        summary(ms, "b")
        ask(ms, r.SetAside("a", 1_500, 0))
        assert examine(path).healthy
        ms.log("a").truncate(before=1_400)
        ms.fold()
        drop_bytes(ms)
        summary(ms)
    assert examine(path).problems == []


@pytest.mark.parametrize("aside", [False, True])
def test_a_fork_of_a_truncated_log_holds_what_its_hash_begins_with(
    tmp_path: Path, aside: bool
) -> None:
    """Also when its parent forgets the same records, and goes."""
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms, 46)
        log = ms.log("a")
        before = summary(ms)
        log.truncate(before=20)
        name = ask(ms, r.SetAside("a", 40, 0)).fork if aside else log.fork("b").name
        assert examine(path).problems == []
        log.truncate(before=40)
        drop_bytes(ms)
        log.delete()
        drop_bytes(ms)
        assert (summary(ms, name).base, summary(ms, name).digest) == (before.base, before.digest)
        assert len(list(ms.log(name).read())) == 30
    assert examine(path).problems == []


def test_the_doctor_finds_records_that_are_not_those_of_their_hash(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms)
        summary(ms)
        store = store_of(ms)
        from millstream.replica.copies.marks import add_marks

        store.run(lambda tx: add_marks(tx, 1, [Mark(3_000, b"w" * 32)]))
    report = examine(path)
    assert not report.healthy
    assert "3000" in report.problems[0].message


def test_the_doctor_finds_a_fork_whose_parent_lost_records(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms, 10)
        ms.log("a").fork("b").append(b"x")
        ms.fold()
        ms.log("a").append(b"y")
        ms.fold()
        store_of(ms).run(lambda tx: tx.drop(keys.entry(1, 11)))
    report = examine(path)
    assert {(one.log, one.lost) for one in report.problems if one.lost} == {
        ("a", (2, 12)),
        ("b", (2, 12)),
    }


def test_the_doctor_finds_a_fork_point_that_vanished(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms, 10)
        ms.log("a").fork("b").append(b"x")
        store_of(ms).run(lambda tx: tx.drop(keys.fork(2)))
    report = examine(path)
    assert not report.healthy
    assert any("listed as a fork of log 1" in one.message for one in report.problems)
