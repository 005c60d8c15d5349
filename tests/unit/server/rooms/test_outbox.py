"""The outbox of a slow listener: lanes, conflation, a bound, and where to go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.server.rooms.outbox import RoomOutbox, Shown

CONFLATED, PRIORITY = ("pointer", "typing"), ("pointer", "left")


def shown(offset: int, kind: str = "draw", origin: str = "ann", size: int = 10) -> Shown:
    return Shown(offset, kind, origin, b"x" * size)


def outbox(bytes_max: int = 1_000) -> RoomOutbox:
    return RoomOutbox(bytes_max, conflated=CONFLATED, priority=PRIORITY)


def offsets(box: RoomOutbox, bytes_max: int = 10**6) -> tuple[list[int], int]:
    piece = box.take(bytes_max)
    return [one.offset for one in piece.messages], piece.offset


def test_what_waits_is_sent_in_order_and_says_where_to_go_on() -> None:
    box = outbox()
    box.put([shown(3), shown(5)], 6)
    assert box.bytes == 20
    assert offsets(box) == ([3, 5], 6)
    assert (box.bytes, bool(box)) == (0, False)
    assert offsets(box) == ([], 6)


def test_priority_types_overtake_and_do_not_move_the_place_to_go_on() -> None:
    box = outbox()
    box.put([shown(0), shown(1, "left"), shown(2)], 3)
    assert offsets(box, 10) == ([1], 0)
    assert offsets(box, 10) == ([0], 2)
    assert offsets(box, 10) == ([2], 3)


def test_a_later_conflated_message_takes_the_place_of_an_earlier_one() -> None:
    box = outbox()
    box.put([shown(0, "pointer", "ann"), shown(1, "pointer", "bob")], 2)
    box.put([shown(2, "pointer", "ann"), shown(3, "typing", "ann"), shown(4, "draw", "ann")], 5)
    assert box.bytes == 40
    assert offsets(box) == ([1, 2, 3, 4], 5)


def test_too_much_is_dropped_and_is_a_gap_from_the_first_that_waited() -> None:
    box = outbox(bytes_max=25)
    box.put([shown(0)], 1)
    assert offsets(box) == ([0], 1)
    box.put([shown(1), shown(2)], 3)
    assert not box.overflown
    box.put([shown(3), shown(4)], 5)
    assert box.overflown
    assert box.gap_from == 1
    assert (box.bytes, offsets(box)[0]) == (0, [])


def test_a_first_message_that_is_too_large_is_the_gap() -> None:
    box = outbox(bytes_max=5)
    box.put([shown(7)], 8)
    assert box.gap_from == 7


TYPES = st.sampled_from(["draw", "pointer", "typing", "left", "text"])
PUTS = st.lists(st.tuples(TYPES, st.sampled_from(["ann", "bob"]), st.integers(1, 9)), max_size=6)
STEPS = st.lists(PUTS | st.integers(1, 30), max_size=30)


@given(STEPS, st.integers(20, 200))
def test_everything_is_sent_replaced_or_in_the_gap(
    steps: list[list[tuple[str, str, int]] | int], bytes_max: int
) -> None:
    """The model: a list of all messages; each must be accounted for, and none twice."""
    box = outbox(bytes_max)
    came: list[Shown] = []
    sent: list[int] = []
    told = 0
    for step in steps:
        if isinstance(step, int):
            piece = box.take(step)
            sent += [one.offset for one in piece.messages]
            assert piece.offset >= told
            told = piece.offset
            known = {*sent}
            for one in came[: piece.offset]:
                later = [
                    o
                    for o in came[one.offset + 1 :]
                    if (o.type, o.origin) == (one.type, one.origin)
                ]
                assert one.offset in known or (one.type in CONFLATED and later)
        else:
            first = len(came)
            new = [shown(first + n, kind, who, size) for n, (kind, who, size) in enumerate(step)]
            came += new
            box.put(new, len(came))
            assert box.bytes <= bytes_max
        if box.overflown:
            break
    if box.overflown:
        assert box.gap_from is not None
        assert told <= box.gap_from < len(came)
        assert all(offset < box.gap_from or came[offset].type in PRIORITY for offset in sent)
    assert len({*sent}) == len(sent)
    for lane in (True, False):
        found = [offset for offset in sent if (came[offset].type in PRIORITY) == lane]
        assert found == sorted(found)
