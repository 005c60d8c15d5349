"""Merging is a join: on random states, and on all small ones there are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millstream.errors import ForkDetected
from millstream.replica import Meta, Stamp
from tests.property.examples import examples
from tests.unit.replica.lattice import Entry, LogState, OnFork, merge

stamps = st.builds(Stamp, st.integers(0, 3), st.integers(0, 2), st.sampled_from("ab"))
metas = st.one_of(
    st.builds(Meta, stamps, st.just(True), st.sampled_from([0, 1, "x", {"y": 1}, None])),
    st.builds(Meta, stamps, st.just(False)),
)
metadata = st.dictionaries(st.sampled_from("klm"), metas, max_size=3)


def shared_entry(offset: int) -> Entry:
    """What the one writer put at an offset."""
    return Entry(b"%d" % offset, key=None if offset % 2 else b"k", timestamp=offset)


@st.composite
def replicas(draw: st.DrawFn) -> LogState:
    """A copy of one log, from one writer, however far it came."""
    start, count = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    entries = tuple(shared_entry(start + i) for i in range(count))
    return LogState(entries, draw(metadata), draw(st.integers(0, 5)), start)


@st.composite
def any_states(draw: st.DrawFn) -> LogState:
    """Any state, also one that no single writer can have made."""
    values = draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=5))
    entries = tuple(Entry(value) for value in values)
    return LogState(entries, draw(metadata), draw(st.integers(0, 5)), draw(st.integers(0, 4)))


def leq(low: LogState, high: LogState, on_fork: OnFork = "refuse") -> bool:
    return merge(low, high, on_fork=on_fork) == high


def check_laws(a: LogState, b: LogState, c: LogState, on_fork: OnFork) -> None:
    def join(one: LogState, other: LogState) -> LogState:
        return merge(one, other, on_fork=on_fork)

    ab = join(a, b)
    assert ab == join(b, a)
    assert join(ab, c) == join(a, join(b, c))
    assert join(a, a) == a
    assert join(ab, b) == ab
    assert leq(a, ab, on_fork)
    assert leq(b, ab, on_fork)
    assert leq(join(a, c), join(ab, c), on_fork)  # monotone
    assert join(LogState(), a) == a
    assert ab.start == max(a.start, b.start)
    assert ab.end == max(a.end, b.end)


@settings(max_examples=examples(300), deadline=None)
@given(replicas(), replicas(), replicas())
def test_copies_of_one_log_join(a: LogState, b: LogState, c: LogState) -> None:
    check_laws(a, b, c, "refuse")


@settings(max_examples=examples(300), deadline=None)
@given(any_states(), any_states(), any_states())
def test_with_the_longest_any_states_join(a: LogState, b: LogState, c: LogState) -> None:
    check_laws(a, b, c, "longest")


@settings(max_examples=examples(300), deadline=None)
@given(any_states(), any_states())
def test_no_offset_changes_its_meaning(a: LogState, b: LogState) -> None:
    try:
        merged = merge(a, b)
    except ForkDetected as error:
        at = error.offset
        assert a[at] != b[at]
        assert all(a[i] == b[i] for i in range(max(a.start, b.start), at))
        with pytest.raises(ForkDetected) as again:
            merge(b, a)
        assert again.value.offset == at
        return
    for offset in range(merged.start, merged.end):
        for state in (a, b):
            if state.start <= offset < state.end:
                assert merged[offset] == state[offset]


@settings(max_examples=examples(200), deadline=None)
@given(replicas(), replicas(), st.lists(st.integers(0, 20), max_size=3))
def test_growing_and_truncating_only_ever_go_up(a: LogState, b: LogState, cuts: list[int]) -> None:
    state = a
    for cut in cuts:
        following = state.truncated(cut)
        following = following.appended(shared_entry(following.end), timestamp=3)
        assert leq(state, following)
        state = following
    assume(state.start >= b.start or b.end >= state.start)
    assert leq(merge(a, b), merge(state, b))


def test_every_small_state_of_one_log_joins() -> None:
    found = [
        LogState(tuple(shared_entry(s + i) for i in range(n)), meta, ts, s)
        for s, n, ts, meta in product(
            range(3),
            range(3),
            range(2),
            ({}, {"k": Meta(Stamp(1, 0, "a"), True, 1)}, {"k": Meta(Stamp(1, 0, "a"), False)}),
        )
    ]
    pairs = {(i, j): merge(a, b) for i, a in enumerate(found) for j, b in enumerate(found)}
    for (i, j), ab in pairs.items():
        assert ab == pairs[j, i]
        assert (i != j) or ab == found[i]
    for (i, j), ab in pairs.items():
        for k in range((i + j) % 3, len(found), 3):
            assert merge(ab, found[k]) == merge(found[i], pairs[j, k])
    assert len(found) == 54


def test_every_small_state_joins_by_the_longest() -> None:
    runs = [run for n in range(3) for run in product((b"a", b"b"), repeat=n)]
    found = [LogState(tuple(map(Entry, run)), start=s) for s in range(3) for run in runs]

    def join(one: LogState, other: LogState) -> LogState:
        return merge(one, other, on_fork="longest")

    for a, b in product(found, repeat=2):
        ab = join(a, b)
        assert ab == join(b, a)
        assert (a != b) or ab == a
        for c in found:
            assert join(ab, c) == join(a, join(b, c))
