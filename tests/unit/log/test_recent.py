"""Recent blocks: what consumers read lately is found again, bounded, and shared with nobody."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.entries import Entry
from millstream.header import NO_HEADERS, Headers
from millstream.log.model.block import pack, unpack_headers
from millstream.log.reading import reader, recent
from millstream.replica.commands import SetAside
from millstream.store.store import Store
from millstream.testing import Probe, SimulatedClock

pytestmark = pytest.mark.embedded


def parts(ms: Millstream, name: str) -> tuple[Store, int]:
    store = Probe(ms).store
    return store, int(store.seen(keys.log_name(name)))


Row = tuple[int, bytes, int, bytes | None, Headers]


def rows(ms: Millstream, name: str, start: int, stop: int) -> list[Row]:
    """Offset, value, timestamp, key and headers of each record."""
    store, log_id = parts(ms, name)
    return _rows_of(recent.recent_columns(store, log_id, name, start=start, stop=stop))


def scattered(ms: Millstream, name: str, offsets: list[int]) -> list[Row]:
    """The same of records that need not be neighbours."""
    store, log_id = parts(ms, name)
    return _rows_of(recent.recent_scattered(store, log_id, name, offsets))


def _rows_of(columns: list[recent.Columns]) -> list[Row]:
    found: list[Row] = []
    for some in columns:
        count, times, packed = len(some.values), some.timestamps, some.packed_headers
        found += zip(
            some.offsets,
            some.values,
            [times] * count if isinstance(times, int) else times,
            some.keys or [None] * count,
            unpack_headers(packed) if packed else [NO_HEADERS] * count,
            strict=True,
        )
    return found


def add(cache: recent.RecentBlocks, first: int, values: list[bytes], log_id: int = 1) -> Any:
    count = len(values)
    entry = Entry(
        ids=range(count),
        appended=[0] * count,
        packed=False,
        keys=[None] * count,
        headers=[b""] * count,
        timestamps=[0] * count,
    )
    return cache.add(log_id, pack("a", first, entry, values))


def test_every_column_is_read_across_blocks_and_single_records(ms: Millstream) -> None:
    log = ms.log("a")
    log.append(b"0", key="k", headers={"n": 0}, timestamp=5)
    log.append_many([b"1", b"2", b"3"], headers=[{"n": 1}, {}, {"n": 3}], timestamps=[6, 7, 8])
    log.append(b"4", timestamp=9)
    log.append_many([b"5", b"6"], keys=["x", None], headers=[{"n": 5}, {"n": 6}])
    records = [(r.offset, r.value, r.timestamp, r.key, r.headers) for r in log.read(0)]

    assert len(records) == 7
    for _ in range(2):
        for start in range(7):
            for stop in range(start, 8):
                assert rows(ms, "a", start, min(stop, 7)) == records[start:stop]
        ms.fold()


def test_records_that_lie_apart_are_read_in_their_order(ms: Millstream) -> None:
    log = ms.log("a")
    log.append(b"0", key="k", headers={"n": 0}, timestamp=5)
    log.append_many([b"1", b"2", b"3"], headers=[{"n": 1}, {}, {"n": 3}], timestamps=[6, 7, 8])
    log.append(b"4", timestamp=9)
    log.append_many([b"%d" % n for n in range(5, 60)], keys=["x", None, *["y"] * 53])
    records = [(r.offset, r.value, r.timestamp, r.key, r.headers) for r in log.read(0)]

    for _ in range(2):
        for offsets in (range(0, 60, 2), range(1, 60, 3), [0, 59], [2, 3, 4], range(60), []):
            assert scattered(ms, "a", list(offsets)) == [records[offset] for offset in offsets]
        ms.fold()


def test_of_records_that_lie_apart_none_may_be_gone(ms: Millstream) -> None:
    ms.log("a").append_many([b"0", b"1"])
    with pytest.raises(CorruptionError, match="is gone"):
        scattered(ms, "a", [0, 5])


def test_single_records_are_fetched_together(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ms.log("a")
    for n in range(50):
        log.append(b"%d" % n)
    fetched: list[int] = []

    def counted(*args: Any, **more: Any) -> Any:
        found = reader.fetch_blocks(*args, **more)
        fetched.append(len(found))
        return found

    monkeypatch.setattr(recent, "fetch_blocks", counted)
    assert [row[1] for row in rows(ms, "a", 0, 50)] == [b"%d" % n for n in range(50)]
    assert len(fetched) == 1


def test_records_that_are_gone_are_missed(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many([b"0", b"1"])
    log.append_many([b"2", b"3"])

    assert [row[1] for row in rows(ms, "a", 3, 5)] == [b"3"]
    with pytest.raises(CorruptionError, match="is gone"):
        rows(ms, "a", 4, 5)


def test_what_was_used_last_stays_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = recent.RecentBlocks()
    size = add(cache, 0, [b"a", b"b"]).size
    monkeypatch.setattr(recent, "BYTES_KEPT_MAX", 3 * size)
    add(cache, 2, [b"a", b"b"])
    add(cache, 4, [b"a", b"b"])
    assert cache.find(1, 0) is not None

    add(cache, 6, [b"a", b"b"])

    assert cache.find(1, 1) is not None
    assert cache.find(1, 2) is None
    assert cache.find(1, 4) is not None
    assert cache.find(2, 0) is None


def test_the_blocks_of_a_queue_with_priorities_are_kept_by_their_size_not_their_number() -> None:
    cache = recent.RecentBlocks()
    for n in range(500):
        add(cache, 2 * n, [b"a", b"b"])

    assert all(cache.find(1, offset) is not None for offset in range(1_000))


def test_a_block_that_is_read_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = recent.RecentBlocks()
    size = add(cache, 0, [b"a", b"b"]).size
    monkeypatch.setattr(recent, "BYTES_KEPT_MAX", 3 * size)
    for _ in range(10):
        add(cache, 2, [b"a", b"b"])

    assert cache.find(1, 0) is not None
    assert cache.find(1, 3) is not None


def test_a_record_is_found_in_a_block_that_another_one_overlaps() -> None:
    cache = recent.RecentBlocks()
    long = add(cache, 0, [b"%d" % n for n in range(100)])
    add(cache, 50, [b"50", b"51"])

    assert cache.find(1, 70) is long
    assert cache.find(1, 100) is None


def test_a_block_that_had_to_go_is_not_found_by_its_log_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent, "BYTES_KEPT_MAX", 7_000)
    cache = recent.RecentBlocks()
    add(cache, 0, [b"a" * 400, b"b" * 400], log_id=1)
    add(cache, 0, [b"a" * 4_000, b"b"], log_id=2)

    assert cache.find(1, 0) is None
    assert cache.find(2, 0) is not None


def test_who_reads_one_by_one_finds_records_cut_ahead_unless_they_are_large() -> None:
    cache = recent.RecentBlocks()
    small = add(cache, 100, [b"%d" % n for n in range(100)])
    for offset in (150, 151, 152, 190, 199, 100, 101, 131, 132, 133, 134):
        found = small.columns(offset, offset + 1)
        assert (found.offsets, found.values) == (
            range(offset, offset + 1),
            [b"%d" % (offset - 100)],
        )
    assert [len(some.values) for some in small._rows[1]] == [1] * recent.ROWS_AHEAD

    large = add(cache, 0, [bytes([n]) * 40_000 for n in range(10)])
    for offset in range(10):
        assert large.columns(offset, offset + 1).values == [bytes([offset]) * 40_000]
        assert len(large._rows[1]) == 1


def test_rows_are_the_same_records_each_by_itself(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many([b"1", b"2", b"3"], headers=[{"n": 1}, {}, {"n": 3}], timestamps=[6, 7, 8])
    log.append(b"4", key="k", timestamp=9)
    log.append_many([b"5", b"6"], keys=["x", None])
    store, log_id = parts(ms, "a")
    found = recent.recent_rows(store, log_id, "a", start=1, stop=6)
    each = [
        one
        for n in range(1, 6)
        for one in recent.recent_columns(store, log_id, "a", start=n, stop=n + 1)
    ]
    assert found == each
    assert [one.values for one in found] == [[b"2"], [b"3"], [b"4"], [b"5"], [b"6"]]


def test_one_record_that_is_in_memory_is_found_by_itself(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many([b"0", b"1"], headers=[{"n": 0}, {}])
    log.append(b"2", key="k")
    store, log_id = parts(ms, "a")
    assert recent.recent_row(store, log_id, 0) is None, "its block was not read yet"
    assert recent.recent_row(store, log_id, 3) is None, "there is none"
    every = [recent.recent_columns(store, log_id, "a", start=n, stop=n + 1)[0] for n in range(3)]
    assert [recent.recent_row(store, log_id, n) for n in range(3)] == every
    ms.log("b").append(b"the newest delta stays")
    ms.fold()
    assert recent.recent_row(store, log_id, 2) is None, "it was folded, and not read since"


def test_what_was_read_of_a_log_stays_valid_after_it_was_set_aside(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many([b"0", b"1", b"2"])
    ms.fold()
    store, old_id = parts(ms, "a")
    read = recent.recent_columns(store, old_id, "a", start=0, stop=3)
    aside = ms.session.execute(SetAside("a", 1, 0)).fork
    log.append(b"other")
    _, new_id = parts(ms, "a")
    assert new_id != old_id == parts(ms, aside)[1]
    cached = [recent.recent_row(store, old_id, n) for n in range(3)]
    assert [row.values for row in cached if row is not None] == [[b"0"], [b"1"], [b"2"]]
    assert recent.recent_columns(store, old_id, aside, start=0, stop=3) == read
    now = recent.recent_columns(store, new_id, "a", start=0, stop=2)
    assert [value for columns in now for value in columns.values] == [b"0", b"other"]


def test_blocks_that_overlap_give_each_record_once(ms: Millstream) -> None:
    """Records that were stored apart lie in the cache in the ranges that were asked for."""
    log = ms.log("a")
    for n in range(40):
        log.append(b"%d" % n)
    ms.fold()
    store, log_id = parts(ms, "a")
    chance = random.Random(5)
    for _ in range(300):
        start, stop = sorted(chance.sample(range(41), 2))
        wanted = [[b"%d" % n] for n in range(start, stop)]
        assert [value for _, value, *_ in rows(ms, "a", start, stop)] == [one for (one,) in wanted]
        each = recent.recent_rows(store, log_id, "a", start=start, stop=stop)
        assert [one.values for one in each] == wanted


@pytest.mark.parametrize("folded", [False, True])
def test_singles_that_lie_apart_have_the_times_of_their_own(
    ms: Millstream, clock: SimulatedClock, folded: bool
) -> None:
    log = ms.log("x")
    for number in range(9):
        log.append(b"%d" % number)
        clock.advance(1)
    if folded:
        log.append(b"the newest delta stays")
        ms.fold()
    store, log_id = parts(ms, "x")
    times = [record.timestamp for record in log.read()]
    found = recent.recent_scattered(store, log_id, "x", [1, 4, 5, 8])
    told = [ms for some in found if isinstance(some.timestamps, list) for ms in some.timestamps]
    assert told == [times[offset] for offset in (1, 4, 5, 8)]


def test_one_unfolded_single_is_read_from_memory_alone(
    ms: Millstream, clock: SimulatedClock
) -> None:
    log = ms.log("x")
    log.append(b"bare")
    log.append(b"named", key="k")
    log.append(b"labelled", headers={"n": 1}, timestamp=77)
    log.append_many([b"a", b"block"])
    store, log_id = parts(ms, "x")
    expected = [
        (record.offset, record.value, record.timestamp, record.key, record.headers)
        for record in log.read()
    ]
    for folded in (False, True):
        for offset, wanted in enumerate(expected):
            assert rows(ms, "x", offset, offset + 1) == [wanted]
            is_single = offset < 3 and not folded
            assert is_single != recent.is_at_hand(store, log_id, start=offset, stop=offset + 1)
        log.append(b"the newest delta stays")
        ms.fold()


def test_unfolded_singles_are_made_one_block_for_the_claims_that_follow(
    ms: Millstream, clock: SimulatedClock
) -> None:
    log = ms.log("x")
    for number in range(300):
        log.append(b"%d" % number, key=str(number), headers={"n": number})
        clock.advance(0.001)
    store, log_id = parts(ms, "x")

    found = rows(ms, "x", 5, 7)

    assert [(one[0], one[1], one[3], one[4]) for one in found] == [
        (5, b"5", b"5", {"n": 5}),
        (6, b"6", b"6", {"n": 6}),
    ]
    held = 5 + recent.ROWS_HELD
    assert recent.is_at_hand(store, log_id, start=5, stop=held)
    assert not recent.is_at_hand(store, log_id, start=held, stop=held + 1)
    assert rows(ms, "x", 0, 300) == [
        (record.offset, record.value, record.timestamp, record.key, record.headers)
        for record in log.read()
    ]
    ms.fold()
    assert rows(ms, "x", 250, 299)[-1][:2] == (298, b"298")


def test_who_reads_on_in_small_blocks_finds_the_next_ones_in_memory(ms: Millstream) -> None:
    log = ms.log("small")
    for first in range(0, 600, 10):
        log.append_many([b"%d" % number for number in range(first, first + 10)])
    ms.fold()
    store, log_id = parts(ms, "small")

    def is_at_hand(start: int) -> bool:
        return recent.is_at_hand(store, log_id, start=start, stop=start + 10)

    rows(ms, "small", 100, 110)
    assert not is_at_hand(110)
    assert [row[1] for row in rows(ms, "small", 110, 120)] == [b"%d" % n for n in range(110, 120)]
    assert is_at_hand(120)
    assert is_at_hand(110 + recent.READ_AHEAD - 10)
    assert not is_at_hand(110 + recent.READ_AHEAD + 10)

    assert [row[1] for row in scattered(ms, "small", [400, 405])] == [b"400", b"405"]
    assert not is_at_hand(410)
    scattered(ms, "small", [410, 415])
    assert is_at_hand(420)


def test_reading_ahead_stops_at_damage_and_hides_none(ms: Millstream) -> None:
    log = ms.log("hurt")
    for first in range(0, 60, 10):
        log.append_many([b"%d" % number for number in range(first, first + 10)])
    ms.fold()
    ms.log("other").append(b"the newest commit stays unfolded")
    _, log_id = parts(ms, "hurt")
    Probe(ms).damage(keys.entry(log_id, 39))  # an entry is stored under its last offset
    rows(ms, "hurt", 0, 10)
    assert [row[1] for row in rows(ms, "hurt", 10, 20)] == [b"%d" % n for n in range(10, 20)]
    with pytest.raises(CorruptionError):
        rows(ms, "hurt", 30, 40)
