"""The cursor in memory: seed 3 (`Queue` of commonware), sentence by sentence.

Its words and ours: enqueue = append, dequeue = take, sync = flush, read_position = position,
ack_floor = floor. Its pruning boundary is our durable floor, and sections are its unit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import Cursor, Log, Millstream
from millstream.errors import InvalidInput, OutOfRange

Reopen = Callable[..., Millstream]
SECTION = 10


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("x")


def fill(log: Log, count: int) -> Cursor:
    log.append_many([str(n) for n in range(count)])
    return open_on(log)


def open_on(log: Log) -> Cursor:
    return log.cursor("c", durable=False, section=SECTION)


def dequeue_all(cursor: Cursor) -> list[int]:
    return [record.offset for record in cursor.take(1_000)]


# "Items are durably stored in a journal and survive crashes."


def test_items_survive(log: Log, reopen: Reopen) -> None:
    fill(log, 3)

    assert dequeue_all(open_on(reopen().log("x"))) == [0, 1, 2]


# "Items can be acknowledged out of order, enabling parallel processing."


def test_items_are_acknowledged_out_of_order(log: Log) -> None:
    cursor = fill(log, 5)
    for position in (3, 0, 4, 2, 1):
        cursor.ack(position)

    assert (cursor.floor(), cursor.is_empty()) == (5, True)


# "Items are readable immediately after append (before commit), but are lost on restart if not
# committed."


def test_appended_items_are_readable_and_lost_without_a_commit(log: Log, reopen: Reopen) -> None:
    stage = log.stage(section=SECTION)
    stage.append("0")
    stage.commit()
    stage.append("1")
    assert [record.text for record in stage.cursor("c").take(9)] == ["0", "1"]

    assert [record.text for record in open_on(reopen().log("x")).take(9)] == ["0"]


# "enqueue: Append + commit in one step; the item is durable before return", "returning its position".


def test_enqueue_returns_the_position(log: Log, reopen: Reopen) -> None:
    assert [log.append("a"), log.append("b")] == [0, 1]
    assert open_on(reopen().log("x")).size() == 2


# "dequeue: Return the next unacked item in FIFO order", "returning its position and value".


def test_dequeue_is_first_in_first_out(log: Log) -> None:
    cursor = fill(log, 3)

    assert [(r.offset, r.text) for _ in range(3) for r in cursor.take()] == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
    ]


# "Returns None when all items have been read or acknowledged."


def test_nothing_comes_when_all_have_been_read(log: Log) -> None:
    cursor = fill(log, 2)
    cursor.take(2)

    assert cursor.take() == []
    assert not cursor.is_empty()


def test_nothing_comes_when_all_have_been_acknowledged(log: Log) -> None:
    cursor = fill(log, 2)
    cursor.ack_up_to(2)

    assert cursor.take() == []


# "Already-acked items are skipped automatically."


def test_acknowledged_items_are_skipped(log: Log) -> None:
    cursor = fill(log, 6)
    cursor.ack([0, 2, 3])

    assert dequeue_all(cursor) == [1, 4, 5]


# "ack / ack_up_to: Mark items as processed (in-memory only)." "Acks are not persisted."


def test_acknowledgements_are_not_persisted(log: Log, reopen: Reopen) -> None:
    cursor = fill(log, 30)
    cursor.ack([0, 5])
    cursor.ack_up_to(20)
    assert cursor.info().floor == 0
    again = open_on(reopen().log("x"))

    assert again.floor() == 0
    assert dequeue_all(again) == [*range(30)]


# "sync: Commit, then prune completed sections below the ack floor." Bytes go under retention.


def test_a_flush_prunes_completed_sections(log: Log) -> None:
    log.retain(consumed=True)
    cursor = fill(log, 25)
    cursor.ack_up_to(23)

    assert cursor.flush() == 20
    log.enforce_retention()
    assert log.start_offset() == 20


def test_a_flush_of_an_incomplete_section_changes_nothing(log: Log) -> None:
    cursor = fill(log, 25)
    cursor.ack_up_to(9)
    assert cursor.flush() == 0
    cursor.ack(range(10, 25))
    assert cursor.flush() == 0
    cursor.ack(9)
    assert cursor.flush() == 20


def test_a_flush_never_goes_back(log: Log) -> None:
    cursor = fill(log, 25)
    cursor.ack_up_to(20)
    cursor.flush()
    cursor.seek(3)

    assert cursor.flush() == 20
    assert cursor.info().floor == 20


def test_without_retention_the_bytes_stay(log: Log) -> None:
    cursor = fill(log, 25)
    cursor.ack_up_to(25)
    cursor.flush()
    log.enforce_retention()

    assert log.start_offset() == 0


# "an ack_floor (all positions below are acked) plus an RMap of acked positions above the floor.
# When items are acked contiguously from the floor, the floor advances automatically."


def test_the_floor_advances_over_a_filled_gap(log: Log) -> None:
    cursor = fill(log, 8)
    cursor.ack([1, 2, 3, 5])
    assert cursor.floor() == 0
    cursor.ack(0)
    assert cursor.floor() == 4
    cursor.ack(4)
    assert cursor.floor() == 6


# "On restart, all non-pruned items are re-delivered regardless of prior ack state."
# "On restart, ack_floor is set to the journal's pruning boundary."


def test_section_10_25_items_0_to_14_acknowledged(log: Log, reopen: Reopen) -> None:
    cursor = fill(log, 25)
    cursor.ack(range(15))
    cursor.flush()
    again = open_on(reopen().log("x"))

    assert (again.floor(), again.position()) == (10, 10)
    assert dequeue_all(again) == [*range(10, 25)]
    assert not again.is_acked(14)


def test_5_items_0_to_2_acknowledged(log: Log, reopen: Reopen) -> None:
    cursor = fill(log, 5)
    cursor.ack([0, 1, 2])
    cursor.flush()
    again = open_on(reopen().log("x"))

    assert again.floor() == 0
    assert dequeue_all(again) == [0, 1, 2, 3, 4]


def test_acknowledgements_above_the_floor_are_delivered_again(log: Log, reopen: Reopen) -> None:
    cursor = fill(log, 30)
    cursor.ack([*range(10), 12, 25])
    cursor.flush()

    assert dequeue_all(open_on(reopen().log("x"))) == [*range(10, 30)]


# "Items that were pruned are gone; everything else is re-delivered."


def test_pruned_items_are_gone(log: Log, reopen: Reopen) -> None:
    log.retain(consumed=True)
    cursor = fill(log, 25)
    cursor.ack(range(15))
    cursor.flush()
    log.enforce_retention()
    again = open_on(reopen().log("x"))

    assert again.floor() == 10
    assert dequeue_all(again) == [*range(10, 25)]
    assert reopen().log("x").get(9) is None


# "On first initialization, creates an empty queue."


def test_a_new_queue_is_empty(log: Log) -> None:
    cursor = open_on(log)

    assert (cursor.size(), cursor.floor(), cursor.position()) == (0, 0, 0)
    assert cursor.is_empty()
    assert cursor.take() == []


# "is_acked: Returns whether a specific position has been acknowledged."


def test_is_acked(log: Log) -> None:
    cursor = fill(log, 5)
    cursor.ack([0, 3])

    assert [cursor.is_acked(n) for n in range(6)] == [True, False, False, True, False, False]


# "ack: Returns PositionOutOfRange if position >= queue size."


@pytest.mark.parametrize("position", [5, 6, 1_000])
def test_ack_out_of_range(log: Log, position: int) -> None:
    cursor = fill(log, 5)
    with pytest.raises(OutOfRange) as refused:
        cursor.ack(position)

    assert (refused.value.position, refused.value.end) == (position, 5)
    assert not cursor.is_acked(position)
    cursor.ack(4)


def test_ack_of_something_in_range_and_something_out_of_it_marks_nothing(log: Log) -> None:
    cursor = fill(log, 5)
    with pytest.raises(OutOfRange):
        cursor.ack([1, 5])

    assert not cursor.is_acked(1)


# "ack_up_to: Acknowledge all items in [ack_floor, up_to) by advancing the floor directly."
# "Returns PositionOutOfRange if up_to > queue size."


def test_ack_up_to(log: Log) -> None:
    cursor = fill(log, 5)
    cursor.ack(3)
    cursor.ack_up_to(3)
    assert cursor.floor() == 4
    cursor.ack_up_to(2)
    assert cursor.floor() == 4
    cursor.ack_up_to(5)
    assert cursor.floor() == 5


def test_ack_up_to_out_of_range(log: Log) -> None:
    cursor = fill(log, 5)
    with pytest.raises(OutOfRange):
        cursor.ack_up_to(6)

    assert cursor.floor() == 0


def test_an_acknowledgement_repeated_changes_nothing(log: Log) -> None:
    cursor = fill(log, 5)
    for _ in range(2):
        cursor.ack([0, 2])

    assert (cursor.floor(), cursor.is_acked(2)) == (1, True)


# "read_position: the position of the next item that will be checked by dequeue."


def test_the_read_position(log: Log) -> None:
    cursor = fill(log, 5)
    assert cursor.position() == 0
    cursor.take(2)
    assert cursor.position() == 2
    cursor.ack([2, 3])
    cursor.take()
    assert cursor.position() == 5
    cursor.take()
    assert cursor.position() == 5


# "size: the total number of items that have been enqueued. This count is not affected by pruning.
# It represents the position that the next enqueued item will receive."


def test_the_size_is_not_affected_by_pruning(log: Log) -> None:
    cursor = fill(log, 5)
    log.truncate(before=3)

    assert cursor.size() == 5
    assert log.append("next") == 5
    assert cursor.size() == 6


# "is_empty: Returns whether all enqueued items have been acknowledged."


def test_is_empty(log: Log) -> None:
    cursor = fill(log, 3)
    cursor.take(3)
    assert not cursor.is_empty()
    cursor.ack([2, 1])
    assert not cursor.is_empty()
    cursor.ack(0)
    assert cursor.is_empty()
    log.append("3")
    assert not cursor.is_empty()


# "reset: Reset the read position to the ack floor so dequeue re-delivers all unacknowledged items
# from the beginning."


def test_reset(log: Log) -> None:
    cursor = fill(log, 6)
    cursor.take(6)
    cursor.ack([0, 1, 4])
    cursor.reset()

    assert (cursor.position(), cursor.floor()) == (2, 2)
    assert dequeue_all(cursor) == [2, 3, 5]
    assert cursor.is_acked(4)


# Beyond the seed.


def test_a_flush_goes_on_after_a_truncation_that_overtook_the_reader(log: Log) -> None:
    cursor = fill(log, 45)
    log.truncate(before=12)
    cursor.ack(cursor.take(20))

    assert cursor.flush() == 30


def test_seek_moves_in_memory_only(log: Log, reopen: Reopen) -> None:
    cursor = fill(log, 5)
    cursor.seek(3)
    assert dequeue_all(cursor) == [3, 4]
    with pytest.raises(OutOfRange):
        cursor.seek(6)

    assert open_on(reopen().log("x")).floor() == 0


def test_seek_below_zero_is_refused(log: Log) -> None:
    cursor = fill(log, 5)
    with pytest.raises((OutOfRange, InvalidInput)):
        cursor.seek(-1)
