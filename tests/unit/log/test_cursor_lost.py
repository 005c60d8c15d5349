"""A reader whose next records the log has forgotten learns of it, on every surface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import InvalidInput, Truncated
from tests.unit.surfaces import SURFACES, surface_of


@pytest.fixture(params=SURFACES)
def ms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with surface_of(request.param) as surface, surface.open(tmp_path / "a.db") as opened:
        yield opened


def filled(ms: Any) -> Any:
    log = ms.log("x")
    log.append_many([b"%d" % n for n in range(20)])
    return log


def offsets(records: list[Any]) -> list[int]:
    return [one.offset for one in records]


def test_a_reader_that_was_overtaken_is_told_once_and_goes_on(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader", on_lost="raise")
    reader.ack(reader.take(3))
    log.retain(count=8)
    ms.log("x").truncate(before=12)
    with pytest.raises(Truncated, match="9 records before cursor 'reader'") as told:
        reader.take(2)
    assert (told.value.ranges, told.value.start) == ([[3, 12]], 12)
    assert offsets(reader.take(2)) == [12, 13]
    assert reader.lost() == [(3, 12)]


def test_by_default_it_goes_on_and_the_programs_log_says_so(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(ms)
    reader = log.cursor("reader")
    log.truncate(before=5)
    with caplog.at_level(logging.WARNING, "millstream.cursor"):
        assert offsets(reader.take(2)) == [5, 6]
        reader.take(1)
    assert [one.message for one in caplog.records] == [
        "records_lost log='x' cursor='reader' ranges=[(0, 5)]"
    ]


def test_a_stored_cursor_tells_the_next_handle_until_one_has_acknowledged(ms: Any) -> None:
    log = filled(ms)
    first = log.cursor("reader")
    first.ack([0, 1, 4, 6])
    log.truncate(before=8)
    (info,) = log.cursors()
    assert info.lost == [(2, 4), (5, 6), (7, 8)]
    for _ in range(2):  # nothing was acknowledged since
        again = log.cursor("reader", on_lost="raise")
        with pytest.raises(Truncated) as told:
            again.take(1)
        assert told.value.ranges == [[2, 4], [5, 6], [7, 8]]
    again.ack(again.take(1))
    assert log.cursors()[0].lost == []
    assert offsets(log.cursor("reader", on_lost="raise").take(1)) == [9]


def test_what_was_taken_in_a_transaction_is_acknowledged_with_it(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader")
    log.truncate(before=4)
    records = reader.take(1)
    with ms.transaction() as tx:
        tx.ack(reader, records)
    assert log.cursors()[0].lost == []


def test_who_acknowledged_or_begins_later_lost_nothing(ms: Any) -> None:
    log = filled(ms)
    done = log.cursor("done", on_lost="raise")
    done.ack_up_to(10)
    log.truncate(before=10)
    assert offsets(done.take(1)) == [10]
    new = log.cursor("new", on_lost="raise")
    assert offsets(new.take(1)) == [10]
    assert done.lost() == new.lost() == []
    back = log.cursor("done", on_lost="raise")
    back.seek(0)
    with pytest.raises(Truncated):  # as a read from 0 does
        back.take(1)
    assert offsets(back.take(1)) == [10]


def test_each_partition_tells_of_its_own(ms: Any) -> None:
    log = ms.log("parts", partitions=2)
    log.append_many([b"a", b"b", b"c"], keys=[b"k"] * 3)
    reader = log.cursor("reader", on_lost="raise")
    full = max(range(2), key=lambda number: log.partition(number).end_offset())
    log.partition(full).truncate(before=2)
    with pytest.raises(Truncated, match="2 records"):
        list(iter(lambda: reader.take(1), []))
    assert reader.lost() == {full: [(0, 2)]}


def test_a_wrong_wish_is_refused(ms: Any) -> None:
    with pytest.raises(InvalidInput, match="on_lost"):
        ms.log("x").cursor("c", on_lost="ignore")
    with pytest.raises(InvalidInput, match="on_lost"):
        ms.log("p", partitions=2).cursor("c", on_lost=None)


def test_retention_itself_tells_too(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        log = filled(ms)
        reader = log.cursor("reader", on_lost="raise")
        log.retain(count=5)
        log.enforce_retention()
        with pytest.raises(Truncated) as told:
            reader.take(1)
        assert told.value.ranges == [[0, log.start_offset()]]
