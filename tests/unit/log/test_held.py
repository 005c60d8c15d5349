"""Records in memory: the same as a read gives, as long as they are not folded; never a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.log.reading.unfolded_records import held_records
from millstream.record import Record
from millstream.testing import Probe

pytestmark = pytest.mark.embedded

MANY = 2**40


@pytest.fixture
def ms(tmp_path: Path) -> Millstream:
    opened = millstream.open(tmp_path / "a.db")
    Probe(opened).pause_keeper()
    return opened


def held(
    ms: Millstream, start: int, stop: int = MANY, bytes_max: int = MANY
) -> list[Record] | None:
    return held_records(Probe(ms).store, "x", start=start, stop=stop, bytes_max=bytes_max)


def test_what_is_not_folded_is_found_as_a_read_finds_it(ms: Millstream) -> None:
    with ms:
        log = ms.log("x")
        log.append(b"0", key=b"k", headers={"type": "a"})
        log.append_many([b"1", b"2"])
        log.append(b"3")
        assert held(ms, 0) == list(log.read(0))
        assert held(ms, 2, 4) == list(log.read(2))
        assert [one.offset for one in held(ms, 0, bytes_max=1) or ()] == [0]


def test_what_was_folded_cut_or_never_there_is_not_told(ms: Millstream) -> None:
    with ms:
        log = ms.log("x")
        assert held(ms, 0) is None
        log.append(b"0")
        assert held(ms, 1) is None
        log.append(b"1")
        log.truncate(before=1)
        assert held(ms, 0) is None
        assert [one.value for one in held(ms, 1) or ()] == [b"1"]
        ms.fold()
        assert held(ms, 1) is None
        log.append(b"2")
        assert [one.value for one in held(ms, 2) or ()] == [b"2"]
        assert held(ms, 1) is None


def test_values_that_are_stored_beside_their_commit_are_not_told(ms: Millstream) -> None:
    with ms:
        ms.log("x").append(b"large" * 10_000)
        assert held(ms, 0) is None


def test_another_handles_commits_are_told_once_they_were_seen(ms: Millstream) -> None:
    with ms, millstream.open(Probe(ms).store.engine.place) as other:
        ms.log("x").append(b"0")
        other.log("x").append(b"1")
        assert held(ms, 1) is None
        Probe(ms).store.refresh()
        assert [one.value for one in held(ms, 0) or ()] == [b"0", b"1"]
