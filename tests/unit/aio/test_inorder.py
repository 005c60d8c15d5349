"""Records in the order of their offsets: each once, none out of turn, whichever way they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.embedded.loop.in_order import HELD_MAX, InOrder


def test_what_begins_at_the_position_comes_out_at_once() -> None:
    order: InOrder[int] = InOrder(5)
    assert order.take(5, [5, 6]) == [5, 6]
    assert order.position == 7


def test_what_is_early_waits_for_what_is_missing_before_it() -> None:
    order: InOrder[int] = InOrder()
    assert order.take(2, [2, 3]) == []
    assert order.has_hole
    assert order.take(0, [0, 1]) == [0, 1, 2, 3]
    assert not order.has_hole


def test_what_overlaps_comes_out_once() -> None:
    order: InOrder[int] = InOrder()
    assert order.take(3, [3, 4, 5]) == []
    assert order.take(0, [0, 1, 2, 3]) == [0, 1, 2, 3, 4, 5]
    assert order.take(2, [2, 3, 4, 5, 6]) == [6]


def test_what_is_skipped_lets_go_what_waited_for_it() -> None:
    order: InOrder[int] = InOrder()
    assert order.take(4, [4]) == []
    assert order.skip(3) == []
    assert order.take(3, [3]) == [3, 4]
    assert order.skip(2) == []
    assert order.position == 5


def test_a_restart_forgets_what_was_held() -> None:
    order: InOrder[int] = InOrder(10)
    order.take(12, [12])
    order.restart(0)
    assert (order.position, order.has_hole) == (0, False)
    assert order.take(0, [0]) == [0]


def test_what_is_held_is_bounded_and_what_was_not_held_is_taken_later() -> None:
    order: InOrder[int] = InOrder()
    many = range(1, HELD_MAX + 1)
    assert order.take(1, many) == []
    assert order.take(HELD_MAX + 1, [HELD_MAX + 1]) == []
    assert order.take(0, [0]) == [*range(HELD_MAX + 1)]
    assert order.take(HELD_MAX + 1, [HELD_MAX + 1]) == [HELD_MAX + 1]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=40))
def test_each_comes_out_once_and_in_its_turn(pieces: list[tuple[int, int]]) -> None:
    order: InOrder[int] = InOrder()
    came_out: list[int] = []
    for first, count in pieces:
        came_out += order.take(first, range(first, first + count))
    assert came_out == [*range(len(came_out))]
    known = {one for first, count in pieces for one in range(first, first + count)}
    until = next(one for one in range(50) if one not in known)
    assert order.position == until
