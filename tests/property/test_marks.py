"""AcknowledgedRanges against a set of numbers: the same positions are acknowledged, whatever was added and how."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.log.model.acknowledged import AcknowledgedRanges, Range, common, joined

END = 40
POSITIONS = st.integers(0, END)
FLOORS = st.integers(0, 3)
RANGES = st.builds(lambda start, length: (start, start + length), POSITIONS, st.integers(-1, 4))
ADD = st.tuples(st.just("add"), RANGES)
RAISE = st.tuples(st.just("raise"), st.tuples(st.integers(0, 20), st.just(0)))
STEPS = st.lists(st.one_of(ADD, ADD, ADD, RAISE), max_size=25) | st.lists(ADD, max_size=25)


def made(floor: int, steps: list[tuple[str, Range]]) -> tuple[AcknowledgedRanges, set[int]]:
    marks, model = AcknowledgedRanges(floor), set(range(floor))
    for verb, (start, stop) in steps:
        if verb == "add":
            marks.add(start, stop)
            model |= set(range(start, stop))
        else:
            marks.raise_floor(start)
            model |= set(range(start))
    return marks, model


@given(floor=FLOORS, steps=STEPS)
def test_the_same_positions_are_marked(floor: int, steps: list[tuple[str, Range]]) -> None:
    marks, model = made(floor, steps)

    assert {n for n in range(2 * END) if n in marks} == model


@given(floor=FLOORS, steps=STEPS)
def test_floor_and_ranges_are_in_their_simplest_form(
    floor: int, steps: list[tuple[str, Range]]
) -> None:
    marks, model = made(floor, steps)
    ranges = marks.ranges()

    assert marks.floor == next(n for n in range(2 * END) if n not in model)
    assert [n for start, stop in ranges for n in range(start, stop)] == sorted(
        n for n in model if n > marks.floor
    )
    before = marks.floor
    for start, stop in ranges:
        assert before < start < stop
        before = stop
    assert marks.count() == len(ranges)


@given(floor=FLOORS, steps=STEPS, position=POSITIONS)
def test_the_next_gap_is_the_next_run_that_is_not_marked(
    floor: int, steps: list[tuple[str, Range]], position: int
) -> None:
    marks, model = made(floor, steps)
    start, stop = marks.next_gap(position)

    assert start == next(n for n in range(position, 2 * END) if n not in model)
    after = [n for n in range(start, 2 * END) if n in model]
    assert stop == (after[0] if after else -1)


@given(floor=FLOORS, steps=STEPS)
def test_marks_made_from_their_own_ranges_are_the_same(
    floor: int, steps: list[tuple[str, Range]]
) -> None:
    marks, _ = made(floor, steps)
    again = AcknowledgedRanges(marks.floor, marks.ranges())

    assert (again.floor, again.ranges()) == (marks.floor, marks.ranges())


@given(positions=st.lists(POSITIONS))
def test_positions_are_joined_into_the_fewest_ranges(positions: list[int]) -> None:
    ranges = joined(positions)

    assert [n for start, stop in ranges for n in range(start, stop)] == sorted({*positions})
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=20),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
)
def test_common_ranges_hold_the_positions_of_both(
    positions: list[int], covering: list[tuple[int, int]]
) -> None:
    shared = common(joined(positions), covering)
    covered = {at for first, stop in covering for at in range(first, stop)}
    assert {at for first, stop in shared for at in range(first, stop)} == covered & {*positions}
    assert all(first < stop for first, stop in shared)
