"""A reader whose next records the log has forgotten learns of it, on every surface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import InvalidInput, RecordsLost, Truncated
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
    reader = log.cursor("reader", on_loss="raise")
    reader.ack(reader.take(3))
    log.retain(count=8)
    ms.log("x").truncate(before=12)
    with pytest.raises(RecordsLost, match="9 records before cursor 'reader'") as told:
        reader.take(2)
    assert (told.value.ranges, told.value.count, told.value.start) == ([[3, 12]], 9, 12)
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
    assert (info.lost, info.lost_ranges) == (4, [(2, 4), (5, 6), (7, 8)])
    for _ in range(2):  # nothing was acknowledged since
        again = log.cursor("reader", on_loss="raise")
        with pytest.raises(Truncated) as told:
            again.take(1)
        assert told.value.ranges == [[2, 4], [5, 6], [7, 8]]
    again.ack(again.take(1))
    assert (log.cursors()[0].lost, log.cursors()[0].lost_ranges) == (4, [])
    assert offsets(log.cursor("reader", on_loss="raise").take(1)) == [9]


def test_what_was_taken_in_a_transaction_is_acknowledged_with_it(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader")
    log.truncate(before=4)
    records = reader.take(1)
    with ms.transaction() as tx:
        tx.ack(reader, records)
    assert (log.cursors()[0].lost, log.cursors()[0].lost_ranges) == (4, [])


def test_who_acknowledged_or_begins_later_lost_nothing(ms: Any) -> None:
    log = filled(ms)
    done = log.cursor("done", on_loss="raise")
    done.ack_up_to(10)
    log.truncate(before=10)
    assert offsets(done.take(1)) == [10]
    new = log.cursor("new", on_loss="raise")
    assert offsets(new.take(1)) == [10]
    assert done.lost() == new.lost() == []
    back = log.cursor("done", on_loss="raise")
    back.seek(0)
    with pytest.raises(Truncated):  # as a read from 0 does
        back.take(1)
    assert offsets(back.take(1)) == [10]


def test_each_partition_tells_of_its_own(ms: Any) -> None:
    log = ms.log("parts", partitions=2)
    log.append_many([b"a", b"b", b"c"], keys=[b"k"] * 3)
    reader = log.cursor("reader", on_loss="raise")
    full = max(range(2), key=lambda number: log.partition(number).end_offset())
    log.partition(full).truncate(before=2)
    with pytest.raises(Truncated, match="2 records"):
        list(iter(lambda: reader.take(1), []))
    assert reader.lost() == {full: [(0, 2)]}


def test_a_wrong_wish_is_refused(ms: Any) -> None:
    with pytest.raises(InvalidInput, match="on_loss"):
        ms.log("x").cursor("c", on_loss="ignore")
    with pytest.raises(InvalidInput, match="on_loss"):
        ms.log("p", partitions=2).cursor("c", on_loss=None)


def test_retention_itself_tells_too(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        log = filled(ms)
        reader = log.cursor("reader", on_loss="raise")
        log.retain(count=5)
        log.enforce_retention()
        with pytest.raises(Truncated) as told:
            reader.take(1)
        assert told.value.ranges == [[0, log.start_offset()]]


def lost(log: Any, name: str = "reader") -> int:
    counts = [info.lost for info in log.cursors() if info.name == name]
    return int(counts[0])


def test_a_loss_is_counted_once_by_all_handles_and_after_reopening(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as here, millstream.open(tmp_path / "a.db") as there:
        log = filled(here)
        readers = [each.log("x").cursor("reader") for each in (here, there)]
        log.truncate(before=6)
        assert lost(log) == 6
        for reader in readers:
            reader.ack(reader.take(1))
            assert lost(log) == 6
        log.truncate(before=9)
        assert lost(log) == 8  # offset 6 was acknowledged
        here.fold()
    with millstream.open(tmp_path / "a.db") as ms:
        reader = ms.log("x").cursor("reader")
        assert (reader.info().lost, reader.info().lost_ranges) == (8, [(7, 9)])
        reader.ack(reader.take(1))
        ms.fold()
        assert (reader.info().lost, reader.info().lost_ranges) == (8, [])


def test_a_late_acknowledgement_shows_that_nothing_was_lost(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader")
    records = reader.take(5)
    log.truncate(before=5)
    assert lost(log) == 5
    reader.ack(records)
    assert lost(log) == 0


def test_moving_back_into_deleted_records_loses_none_anew(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader")
    log.truncate(before=4)
    reader.seek(0)
    assert lost(log) == 4
    reader.ack(reader.take(1))
    reader.seek(2)
    assert lost(log) == 4
    log.truncate(before=7)
    assert lost(log) == 7
    old = log.cursor("old", start=0)
    old.ack(old.take(1))
    assert lost(log, "old") == 0


def test_a_cursor_in_memory_counts_with_its_flush(ms: Any) -> None:
    log = filled(ms)
    reader = log.cursor("reader", durable=False, section=4)
    reader.ack(reader.take(2))
    log.truncate(before=6)
    reader.ack(reader.take(3))
    assert reader.flush() == 8
    assert lost(log) == 4  # offsets 0 and 1 were acknowledged in memory
    reader.ack(reader.take(3))
    assert reader.flush() == 12
    assert lost(log) == 4
