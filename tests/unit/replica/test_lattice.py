"""Merging two copies of a log: the examples of the issue, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ForkDetected, InvalidInput
from millstream.replica import Meta, Stamp
from tests.unit.replica.lattice import Entry, LogState, merge


def entry(offset: int) -> Entry:
    return Entry(b"%d" % offset, timestamp=offset)


def log(start: int, count: int, **more: Any) -> LogState:
    """A copy of one log: every offset has the same entry in all of them."""
    return LogState(tuple(entry(start + i) for i in range(count)), start=start, **more)


def both(a: LogState, b: LogState) -> LogState:
    """The merge, whichever way round."""
    found = merge(a, b)
    assert found == merge(b, a)
    return found


def test_the_later_start_wins() -> None:
    assert both(log(0, 0), log(5, 0)).start == 5


def test_entries_are_aligned_and_the_longer_taken() -> None:
    assert both(log(0, 10), log(5, 8)) == log(5, 8)


def test_what_one_side_truncated_stays_truncated() -> None:
    assert both(log(10, 2), log(0, 8)) == log(10, 2)


def test_truncating_past_the_end_moves_start_and_end() -> None:
    state = log(0, 3).truncated(7)
    assert (state.start, state.end, len(state.entries)) == (7, 7, 0)


def test_truncating_backwards_does_nothing() -> None:
    state = log(4, 3)
    assert state.truncated(2) is state


def test_merged_with_itself_it_is_itself() -> None:
    state = log(3, 4, timestamp=9).with_metadata("a", 1, Stamp(1, 0, "w"))
    assert merge(state, state) == state
    assert merge(state, log(3, 4, timestamp=9, metadata=state.metadata)) == state


def test_no_state_and_the_empty_state_are_less_than_any() -> None:
    state = log(3, 4, timestamp=9)
    assert merge(None, state) is state
    assert merge(state, None) is state
    assert merge(None, None) is None
    assert both(LogState(), state) == state


def test_the_later_timestamp_wins() -> None:
    assert both(log(0, 1, timestamp=5), log(0, 1, timestamp=8)).timestamp == 8


def test_of_metadata_the_later_stamp_wins() -> None:
    a = LogState().with_metadata("k", "old", Stamp(1, 0, "a"))
    b = (
        LogState()
        .with_metadata("k", "new", Stamp(2, 0, "b"))
        .with_metadata("x", 1, Stamp(1, 0, "b"))
    )
    assert both(a, b).metadata == b.metadata


def test_equal_times_go_by_counter_then_writer_then_bytes() -> None:
    for low, high in (
        (Meta(Stamp(5, 0, "z"), True, "a"), Meta(Stamp(5, 1, "a"), True, "b")),
        (Meta(Stamp(5, 1, "a"), True, "b"), Meta(Stamp(5, 1, "b"), True, "a")),
        (Meta(Stamp(5, 1, "b"), True, "a"), Meta(Stamp(5, 1, "b"), True, "b")),
    ):
        merged = both(LogState(metadata={"k": low}), LogState(metadata={"k": high}))
        assert merged.metadata["k"] == high


def test_a_deletion_is_not_undone_by_an_older_copy() -> None:
    before = LogState().with_metadata("k", 1, Stamp(1, 0, "a"))
    after = before.without_metadata("k", Stamp(2, 0, "b"))
    assert not both(before, after).metadata["k"].present
    again = after.with_metadata("k", 2, Stamp(3, 0, "a"))
    assert both(after, again).metadata["k"].value == 2


def test_copies_that_differ_below_both_ends_are_a_fork() -> None:
    base = log(2, 3)
    ours, theirs = base.appended(Entry(b"x")), base.appended(Entry(b"y"), Entry(b"z"))
    for one, other in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ForkDetected) as caught:
            merge(one, other)
        assert caught.value.offset == 5
    assert list(ours.entries)[-1] == Entry(b"x")


def test_a_difference_that_one_side_has_truncated_is_no_fork() -> None:
    ours = LogState((Entry(b"x"), Entry(b"same")))
    theirs = LogState((Entry(b"y"), Entry(b"same"), Entry(b"more"))).truncated(1)
    assert both(ours, theirs) == theirs


def test_the_longest_is_taken_on_request() -> None:
    ours, theirs = log(0, 2).appended(Entry(b"x")), log(0, 2).appended(Entry(b"y"), Entry(b"z"))
    assert merge(ours, theirs, on_fork="longest") == theirs
    assert merge(theirs, ours, on_fork="longest") == theirs
    short = log(0, 2).appended(Entry(b"y"))
    assert merge(ours, short, on_fork="longest") == merge(short, ours, on_fork="longest")


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": -1},
        {"start": True},
        {"start": 2**63},
        {"start": 2**63 - 1, "entries": (Entry(b""),)},
        {"timestamp": -1},
        {"timestamp": 1.5},
        {"entries": [Entry(b"")]},
        {"entries": (b"x",)},
        {"metadata": {"k": 1}},
        {"metadata": {"": Meta(Stamp(1, 0, "w"), True)}},
        {"metadata": {"k": Meta(Stamp(-1, 0, "w"), True)}},
        {"metadata": {"k": Meta(Stamp(2**60, 0, "w"), True)}},
        {"metadata": {"k": Meta(Stamp(1, 2**60, "w"), True)}},
        {"metadata": {"k": Meta(Stamp(1, 0, "w"), False, "value")}},
        {"metadata": {"k": Meta(Stamp(1, 0, "w" * 256), True)}},
        {"metadata": 5},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        LogState(**wrong)


def test_entries_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        Entry("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="timestamp"):
        Entry(b"", timestamp=-1)
    with pytest.raises(InvalidInput, match="mapping"):
        Entry(b"", headers=5)  # type: ignore[arg-type]


def test_whatever_is_no_state_or_no_rule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="LogState"):
        merge(LogState(), {"start": 0})  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="on_fork"):
        merge(LogState(), LogState(), on_fork="mine")  # type: ignore[arg-type]


def test_growing_two_ways_from_one_state_keeps_both() -> None:
    base = log(0, 2)
    one, other = base.appended(Entry(b"1")), base.appended(Entry(b"2"))
    assert [e.value for e in one.entries] == [b"0", b"1", b"1"]
    assert [e.value for e in other.entries] == [b"0", b"1", b"2"]
    assert len(base.entries) == 2
