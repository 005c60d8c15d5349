"""The overlay against a plain dictionary that does the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.format import keys
from millstream.store.state.overlay import Overlay


def entry(offset: int, log_id: int = 1) -> bytes:
    return keys.entry(log_id, offset)


def test_a_row_is_held_until_a_fold_has_moved_it_home() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(0), b"a"), (keys.payload(9), b"p")])
    overlay.put(2, [(entry(1), b"b")])
    assert overlay.get(entry(0)) == b"a"
    assert overlay.get(keys.payload(9)) == b"p"
    assert overlay.oldest(1) == [(entry(0), b"a"), (keys.payload(9), b"p")]

    overlay.prune(1)
    assert overlay.get(entry(0)) is None
    assert overlay.get(keys.payload(9)) is None
    assert overlay.get(entry(1)) == b"b"
    assert len(overlay) == 1


def test_a_row_that_a_later_delta_overwrote_stays_until_that_one_is_folded() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(0), b"old")])
    overlay.put(2, [(entry(0), b"new")])
    assert overlay.oldest(1) == []
    overlay.prune(1)
    assert overlay.get(entry(0)) == b"new"
    assert overlay.oldest(2) == [(entry(0), b"new")]
    overlay.prune(2)
    assert len(overlay) == 0


def test_a_delta_may_carry_the_same_key_twice() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(0), b"old"), (keys.payload(1), b"old")])
    overlay.put(1, [(entry(0), b"new"), (keys.payload(1), b"new")])
    assert dict(overlay.oldest(1)) == {entry(0): b"new", keys.payload(1): b"new"}
    overlay.prune(1)
    assert len(overlay) == 0


def test_a_key_that_was_dropped_may_come_again_in_the_same_delta() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(0), b"old")])
    overlay.drop_all([(entry(0), entry(0) + b"\x00")])
    overlay.put(1, [(entry(0), b"new")])
    overlay.prune(1)
    assert len(overlay) == 0


def test_the_row_at_or_above_is_sought_within_one_log() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(n), b"%d" % n) for n in (10, 20, 5)])
    overlay.put(1, [(entry(0, log_id=2), b"other")])
    assert overlay.after(entry(0)) == (entry(5), b"5")
    assert overlay.after(entry(5)) == (entry(5), b"5")
    assert overlay.after(entry(6)) == (entry(10), b"10")
    assert overlay.after(entry(21)) is None
    assert overlay.after(entry(3, log_id=3)) is None
    assert overlay.rows_from(entry(6), limit=9) == [(entry(10), b"10"), (entry(20), b"20")]
    assert overlay.rows_from(entry(0), limit=1) == [(entry(5), b"5")]
    assert overlay.rows_from(entry(3, log_id=3), limit=9) == []


def test_a_range_is_dropped_half_open_and_only_there() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(n, log), b"") for log in (1, 2) for n in range(5)])
    overlay.drop_all([(entry(1), entry(3))])
    assert overlay.keys(entry(0), entry(99)) == [entry(0), entry(3), entry(4)]
    assert len(overlay.keys(entry(0, 2), entry(99, 2))) == 5
    overlay.drop_all([(entry(0), entry(0, log_id=3))])
    assert len(overlay) == 0


def test_a_reader_that_holds_a_group_sees_it_as_it_was_when_keys_go() -> None:
    overlay = Overlay()
    overlay.put(1, [(entry(n), b"") for n in range(4)])
    before = overlay._groups[entry(0)[:10]]
    overlay.drop_all([(entry(n), entry(n) + b"\x00") for n in (1, 1, 9)])
    assert before == [entry(n) for n in range(4)]
    assert overlay.keys(entry(0), entry(9)) == [entry(0), entry(2), entry(3)]
    overlay.drop_all([(entry(0), entry(0) + b"\x00"), (entry(2), entry(9))])
    assert overlay.keys(entry(0), entry(9)) == []
    assert overlay.after(entry(0)) is None


OFFSETS = st.integers(0, 12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), OFFSETS, st.integers(1, 3)),
        st.tuples(st.just("drop"), OFFSETS, OFFSETS),
        st.tuples(st.just("fold"), st.integers(0, 4), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_it_agrees_with_a_dictionary(actions: list[tuple[str, int, int]]) -> None:
    overlay = Overlay()
    model: dict[bytes, tuple[int, bytes]] = {}
    folded = 0
    for seq, (action, first, second) in enumerate(actions, start=1):
        if action == "put":
            rows = [(entry(first + at), b"%d" % seq) for at in range(second)]
            overlay.put(seq, rows)
            model |= {key: (seq, value) for key, value in rows}
        elif action == "drop":
            overlay.drop_all([(entry(first), entry(second))])
            model = {k: v for k, v in model.items() if not entry(first) <= k < entry(second)}
        else:
            folded = max(folded, seq - 1 - first)
            expected = {key: row[1] for key, row in model.items() if row[0] <= folded}
            assert dict(overlay.oldest(folded)) == expected
            overlay.prune(folded)
            model = {key: row for key, row in model.items() if row[0] > folded}
        assert overlay.keys(entry(0), entry(99)) == sorted(model)
        for offset in range(16):
            row = model.get(entry(offset))
            assert overlay.get(entry(offset)) == (row[1] if row else None)
            above = min((key for key in model if key >= entry(offset)), default=None)
            found = overlay.after(entry(offset))
            assert (found[0] if found else None) == above


def test_keys_of_several_groups_come_in_order_whichever_came_first() -> None:
    overlay = Overlay()
    for log_id in (3, 1, 2):
        overlay.put(log_id, [(entry(offset, log_id), b"x") for offset in (5, 0)])
    found = overlay.keys(keys.entry(1, 0), keys.entry(4, 0))
    assert len(found) == 6
    assert found == sorted(found)
