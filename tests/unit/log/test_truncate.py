"""Truncation: only forward, past the end only if that is said, and it says how many went."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import Log, Millstream
from millstream.errors import InvalidInput, OutOfRange


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
    assert log.truncate(before=9, past_end=True) == 5
    assert bounds(log) == (9, 9)
    assert len(log) == 0
    assert log.append(b"9") == 9
    assert [record.offset for record in log.read()] == [9]


@pytest.mark.parametrize("before", [6, 2**62, 2**63 - 1])
def test_past_the_end_is_refused_unless_it_is_said(log: Log, ms: Millstream, before: int) -> None:
    def in_transaction() -> None:
        with ms.transaction() as tx:
            tx.truncate("x", before=before)

    for attempt in (lambda: log.truncate(before=before), in_transaction):
        with pytest.raises(OutOfRange, match=f"log 'x' ends at 5, and {before} lies past") as no:
            attempt()
        assert (no.value.position, no.value.end) == (before, 5)
    assert bounds(log) == (0, 5)
    assert log.append(b"5") == 5


def test_a_log_always_has_an_offset_left(log: Log) -> None:
    with pytest.raises(InvalidInput, match="no offset left"):
        log.truncate(before=2**63 - 1, past_end=True)
    assert bounds(log) == (0, 5)
    assert log.truncate(before=2**63 - 2, past_end=True) == 5
    assert log.append(b"the last") == 2**63 - 2
    assert log.truncate(before=2**63 - 1) == 1, "what is there may go"


def test_to_the_end_leaves_an_empty_log(log: Log) -> None:
    assert log.truncate(before=5) == 5
    assert bounds(log) == (5, 5)
    assert (log.first(), log.last()) == (None, None)


def test_a_log_that_does_not_exist_begins_where_it_is_truncated(ms: Millstream) -> None:
    assert ms.log("new").truncate(before=0) == 0
    with pytest.raises(OutOfRange, match="log 'new' ends at 0"):
        ms.log("new").truncate(before=7)
    assert ms.log("new").info() is None
    assert ms.log("new").truncate(before=7, past_end=True) == 0
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
