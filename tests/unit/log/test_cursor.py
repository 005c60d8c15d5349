"""The durable cursor: each acknowledgement is a commit, in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Cursor, Limits, Log, Millstream
from millstream.embedded.session import EmbeddedSession
from millstream.errors import InvalidInput, NotFound, OutOfRange, TooLarge
from millstream.log import commands as c
from millstream.testing import Probe, SimulatedClock

Reopen = Callable[..., Millstream]


@pytest.fixture
def log(ms: Millstream) -> Log:
    log = ms.log("x")
    log.append_many([b"x"] * 6)
    log.append_many([b"y"] * 4)
    return log


@pytest.fixture
def cursor(log: Log) -> Cursor:
    return log.cursor("c")


def offsets(cursor: Cursor, n: int = 99) -> list[int]:
    return [record.offset for record in cursor.take(n)]


def test_it_takes_in_order_and_goes_on(cursor: Cursor) -> None:
    assert offsets(cursor, 1) == [0]
    assert offsets(cursor, 7) == [*range(1, 8)]
    assert offsets(cursor) == [8, 9]
    assert offsets(cursor) == []
    assert (cursor.position(), cursor.floor(), cursor.size()) == (10, 0, 10)
    assert (cursor.take(0), cursor.take(-1)) == ([], [])


def test_taking_sees_what_is_appended_later(log: Log, cursor: Cursor) -> None:
    offsets(cursor)
    log.append(b"z")

    assert offsets(cursor) == [10]


@pytest.mark.parametrize(
    "acknowledged",
    [
        lambda records: records,
        lambda records: [record.offset for record in records],
        lambda records: iter(reversed(records)),
        lambda records: [*records, *records],
    ],
)
def test_records_and_offsets_are_acknowledged_in_any_order(
    cursor: Cursor, acknowledged: Callable[[Any], Any]
) -> None:
    cursor.ack(acknowledged(cursor.take(4)))

    assert cursor.floor() == 4
    assert [cursor.is_acked(n) for n in range(6)] == [True] * 4 + [False] * 2


def test_one_record_or_one_offset_is_enough(cursor: Cursor) -> None:
    cursor.ack(cursor.take()[0])
    cursor.ack(1)
    cursor.ack([])

    assert cursor.floor() == 2


def test_what_is_acknowledged_out_of_order_is_skipped(cursor: Cursor) -> None:
    cursor.ack([1, 2, 5])

    assert offsets(cursor, 3) == [0, 3, 4]
    assert offsets(cursor) == [6, 7, 8, 9]


def test_the_floor_moves_over_a_gap_that_is_filled(cursor: Cursor) -> None:
    cursor.ack([1, 2, 4])
    assert cursor.floor() == 0
    cursor.ack(0)
    assert cursor.floor() == 3
    cursor.ack(3)
    assert cursor.floor() == 5


def test_every_acknowledgement_lasts(log: Log, cursor: Cursor, reopen: Reopen) -> None:
    cursor.ack([0, 1, 4, 5, 8])
    cursor.take(9)
    again = reopen().log("x").cursor("c")

    assert (again.floor(), again.position()) == (2, 2)
    assert again.info().ranges == [(4, 6), (8, 9)]
    assert again.info().lag == 5
    assert offsets(again) == [2, 3, 6, 7, 9]


@pytest.mark.parametrize("fold", [False, True])
def test_many_acknowledgements_fold_into_one_record(reopen: Reopen, fold: bool) -> None:
    ms = reopen()
    log = ms.log("x")
    log.append_many([b"x"] * 100)
    cursor = log.cursor("c")
    for n in range(0, 100, 3):
        cursor.ack(n)
        if fold and n % 10 == 0:
            ms.fold()
    again = reopen().log("x").cursor("c")

    assert again.info().ranges == [(n, n + 1) for n in range(3, 100, 3)]


def test_ack_up_to_moves_the_floor(cursor: Cursor) -> None:
    cursor.ack(7)
    cursor.ack_up_to(4)
    assert (cursor.floor(), cursor.info().floor) == (4, 4)
    cursor.ack_up_to(2)
    cursor.ack_up_to(0)
    assert cursor.floor() == 4
    cursor.ack_up_to(7)
    assert cursor.floor() == 8
    cursor.ack_up_to(10)
    assert (cursor.floor(), cursor.is_empty()) == (10, True)


@pytest.mark.parametrize("position", [10, 11, 2**40])
def test_positions_past_the_end_are_refused(cursor: Cursor, position: int) -> None:
    for refused in (
        lambda: cursor.ack(position),
        lambda: cursor.ack([0, position]),
        lambda: cursor.ack_up_to(position + 1),
        lambda: cursor.seek(position + 1),
    ):
        with pytest.raises(OutOfRange) as error:
            refused()
        assert error.value.end == 10
    assert (cursor.floor(), cursor.info().ranges) == (0, [])


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "1", None, [0, -1]])
def test_what_is_no_position_is_refused(cursor: Cursor, wrong: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        cursor.ack(wrong)
    assert cursor.info().ranges == []


def test_records_of_another_log_are_not_acknowledged(ms: Millstream, cursor: Cursor) -> None:
    ms.log("other").append_many(range(3))
    records = [*ms.log("other").read()]
    with pytest.raises(InvalidInput, match="a record of log 'x' is expected"):
        cursor.ack(records)
    with pytest.raises(InvalidInput, match="is expected"), ms.transaction() as tx:
        tx.ack(cursor, records)
    assert cursor.floor() == 0


def test_reset_brings_back_what_is_not_acknowledged(cursor: Cursor) -> None:
    taken = cursor.take(5)
    cursor.ack([taken[0], taken[3]])
    cursor.reset()

    assert cursor.position() == 1
    assert offsets(cursor) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_reset_sees_what_another_handle_has_acknowledged(
    log: Log, cursor: Cursor, tmp_path: Path, clock: SimulatedClock
) -> None:
    with millstream.open(tmp_path / "store.db", clock=clock) as other:
        other.log("x").cursor("c").ack([0, 1, 3])
    cursor.reset()

    assert cursor.floor() == 2
    assert offsets(cursor, 3) == [2, 4, 5]


def test_seek_goes_anywhere_and_forgets_what_lies_above(cursor: Cursor, reopen: Reopen) -> None:
    cursor.ack([0, 1, 5])
    cursor.seek(4)
    assert (cursor.floor(), cursor.position(), cursor.info().ranges) == (4, 4, [])
    assert offsets(cursor, 3) == [4, 5, 6]
    cursor.seek(1)
    assert offsets(cursor, 2) == [1, 2]
    cursor.seek(10)
    assert cursor.is_empty()
    cursor.seek(0)

    assert reopen().log("x").cursor("c").floor() == 0


def test_seek_below_zero_is_refused(cursor: Cursor) -> None:
    with pytest.raises(InvalidInput):
        cursor.seek(-1)


@pytest.mark.parametrize(
    ("start", "floor"), [("earliest", 3), ("latest", 10), (5, 5), (10, 10), (0, 3)]
)
def test_a_new_cursor_starts_where_it_is_told(log: Log, start: int | str, floor: int) -> None:
    log.truncate(before=3)
    cursor = log.cursor("new", start=start)

    assert cursor.floor() == floor
    assert offsets(cursor) == [*range(floor, 10)]


@pytest.mark.parametrize("start", [11, -1, "first", "5", 1.5, None])
def test_a_start_that_is_none_is_refused(log: Log, start: Any) -> None:
    with pytest.raises((OutOfRange, InvalidInput)):
        log.cursor("new", start=start)
    assert log.cursors() == []


def test_the_start_of_a_cursor_that_exists_does_not_count(log: Log, cursor: Cursor) -> None:
    cursor.ack_up_to(3)

    assert log.cursor("c", start="latest").floor() == 3


def test_a_section_has_at_least_one_record(log: Log) -> None:
    with pytest.raises(InvalidInput):
        log.cursor("c", section=0)


def test_what_was_truncated_counts_as_acknowledged(log: Log, cursor: Cursor) -> None:
    cursor.take(2)
    log.truncate(before=5)

    assert (cursor.floor(), cursor.is_acked(4), cursor.is_acked(5)) == (5, True, False)
    assert cursor.info().lag == 5
    assert offsets(cursor) == [5, 6, 7, 8, 9]
    log.truncate(before=20, past_end=True)
    assert (cursor.floor(), cursor.is_empty(), cursor.take()) == (20, True, [])
    log.append(b"z")
    assert offsets(cursor) == [20]


def test_a_truncation_that_meets_acknowledged_records_moves_the_floor_over_them(
    log: Log, cursor: Cursor
) -> None:
    cursor.ack([5, 6, 7])
    log.truncate(before=5)
    assert (cursor.floor(), cursor.info().floor, cursor.info().ranges) == (8, 8, [])
    cursor.ack([8, 9])

    assert (cursor.is_empty(), cursor.info().lag) == (True, 0)


def test_a_cursor_can_wait_for_a_log_to_exist(ms: Millstream) -> None:
    cursor = ms.log("later").cursor("c")
    assert (cursor.is_empty(), cursor.size(), cursor.take()) == (True, 0, [])
    ms.log("later").append(b"x")

    assert offsets(cursor) == [0]


def test_cursors_are_independent_and_listed(log: Log) -> None:
    one, two = log.cursor("one"), log.cursor("two", section=5)
    one.ack_up_to(7)
    two.ack(3)

    assert [(i.name, i.floor, i.ranges, i.lag, i.section, i.durable) for i in log.cursors()] == [
        ("one", 7, [], 3, 1_024, True),
        ("two", 0, [(3, 4)], 9, 5, True),
    ]


def test_a_deleted_cursor_is_told_so(log: Log, cursor: Cursor) -> None:
    assert cursor.delete()
    assert not cursor.delete()
    for refused in (lambda: cursor.ack(0), lambda: cursor.seek(0), cursor.info, cursor.reset):
        with pytest.raises(NotFound):
            refused()
    assert log.cursor("c").floor() == 0


def test_a_flush_has_nothing_to_do(cursor: Cursor) -> None:
    cursor.ack_up_to(3)

    assert cursor.flush() == 3


def test_gaps_are_bounded(reopen: Reopen) -> None:
    log = reopen(Limits(cursor_ranges_max=3)).log("x")
    log.append_many([b"x"] * 20)
    cursor = log.cursor("c")
    cursor.ack([2, 4, 6])

    with pytest.raises(TooLarge):
        cursor.ack(8)
    cursor.ack_up_to(6)
    cursor.ack(9)
    assert (cursor.floor(), cursor.info().ranges) == (7, [(9, 10)])


def test_an_acknowledgement_that_fills_a_gap_is_taken_at_the_limit(reopen: Reopen) -> None:
    log = reopen(Limits(cursor_ranges_max=3)).log("x")
    log.append_many([b"x"] * 20)
    cursor = log.cursor("c")
    cursor.ack([2, 4, 6])

    cursor.ack(3)
    assert cursor.info().ranges == [(2, 5), (6, 7)]


class Meddling(EmbeddedSession):
    """Does something to the log just before its records are read for the first time."""

    meddle: Callable[[], object] | None = None

    def execute(self, command: Any) -> Any:
        if isinstance(command, c.ReadBlocks) and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return super().execute(command)


@pytest.fixture
def meddling(ms: Millstream, log: Log) -> Meddling:
    return Meddling(Probe(ms).store)


def test_a_truncation_just_before_the_read_is_stepped_over(log: Log, meddling: Meddling) -> None:
    cursor = Log(meddling, "x").cursor("c")
    meddling.meddle = lambda: log.truncate(before=7)

    assert offsets(cursor) == [7, 8, 9]


@pytest.mark.timeout(10)
def test_a_deletion_just_before_the_read_ends_the_take(log: Log, meddling: Meddling) -> None:
    cursor = Log(meddling, "x").cursor("c")
    meddling.meddle = log.delete

    assert cursor.take(5) == []


def test_it_says_what_it_is(cursor: Cursor) -> None:
    assert repr(cursor) == "Cursor('x', 'c')"
    assert (cursor.name, cursor.log_name, cursor.durable) == ("c", "x", True)
