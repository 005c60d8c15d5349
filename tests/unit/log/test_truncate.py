"""Truncation: only forward, past the end moves both ends, and it says how many went."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import Log, Millstream
from millstream.errors import InvalidInput


@pytest.fixture
def log(ms: Millstream) -> Log:
    log = ms.log("x")
    log.append_many([b"0", b"1", b"2"])
    log.append(b"3")
    log.append(b"4")
    return log


def bounds(log: Log) -> tuple[int, int]:
    return log.start_offset(), log.end_offset()


def test_it_counts_what_went(log: Log) -> None:
    assert log.truncate(before=2) == 2
    assert log.truncate(before=4) == 2
    assert bounds(log) == (4, 5)
    assert [record.value for record in log.read()] == [b"4"]


def test_it_never_goes_back(log: Log) -> None:
    log.truncate(before=3)

    assert [log.truncate(before=n) for n in (3, 2, 0)] == [0, 0, 0]
    assert bounds(log) == (3, 5)


def test_past_the_end_both_ends_move(log: Log) -> None:
    assert log.truncate(before=9) == 5
    assert bounds(log) == (9, 9)
    assert len(log) == 0
    assert log.append(b"9") == 9
    assert [record.offset for record in log.read()] == [9]


def test_to_the_end_leaves_an_empty_log(log: Log) -> None:
    assert log.truncate(before=5) == 5
    assert bounds(log) == (5, 5)
    assert (log.first(), log.last()) == (None, None)


def test_a_log_that_does_not_exist_begins_where_it_is_truncated(ms: Millstream) -> None:
    assert ms.log("new").truncate(before=0) == 0
    assert ms.log("new").info() is None
    assert ms.log("new").truncate(before=7) == 0
    assert ms.log("new").append(b"x") == 7


def test_a_negative_offset_is_refused(log: Log) -> None:
    with pytest.raises(InvalidInput):
        log.truncate(before=-1)


def test_it_lasts_and_the_bytes_go(log: Log, reopen: Callable[..., Millstream]) -> None:
    before = log.info()
    log.truncate(before=4)
    again = reopen().log("x")
    again.enforce_retention()
    after = again.info()

    assert bounds(again) == (4, 5)
    assert before is not None
    assert after is not None
    assert 0 < after.bytes < before.bytes
    assert [record.value for record in reopen().log("x").read()] == [b"4"]


def test_a_batch_goes_from_disk_only_as_a_whole(log: Log) -> None:
    full = log.info()
    log.truncate(before=2)
    log.enforce_retention()
    cut = log.info()

    assert full is not None
    assert cut is not None
    assert cut.bytes == full.bytes
    assert [record.value for record in log.read()] == [b"2", b"3", b"4"]
