"""Reading: by offset, by range, in blocks; what is not there is None, what is gone is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Limits, Log, Millstream
from millstream.command import Command
from millstream.errors import Truncated
from millstream.log.commands import ReadBlocks, Truncate
from millstream.record import wall_ms_of

Reopen = Callable[..., Millstream]


@pytest.fixture
def log(ms: Millstream) -> Log:
    """Ten records: singles, a batch of four, singles; the first half folded."""
    log = ms.log("x")
    for n in range(3):
        log.append(str(n))
    log.append_many([str(n) for n in range(3, 7)])
    ms.fold()
    for n in range(7, 10):
        log.append(str(n))
    return log


def texts(log: Log, *bounds: int | None) -> str:
    return "".join(record.text for record in log.read(*bounds))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((), "0123456789"),
        ((0, 10), "0123456789"),
        ((4,), "456789"),
        ((None, 4), "0123"),
        ((4, 6), "45"),
        ((2, 8), "234567"),
        ((5, 5), ""),
        ((6, 5), ""),
        ((9, 99), "9"),
        ((10,), ""),
        ((50, 60), ""),
        ((0, -1), "012345678"),
        ((-3,), "789"),
        ((-99, -9), "0"),
        ((0, -99), ""),
    ],
)
def test_a_range_is_half_open(log: Log, bounds: tuple[int | None, ...], expected: str) -> None:
    assert texts(log, *bounds) == expected
    assert "".join(v.decode() for b in log.read_blocks(*bounds) for v in b.values()) == expected


def test_every_range_of_every_length(log: Log) -> None:
    for start in range(11):
        for stop in range(11):
            assert texts(log, start, stop) == "0123456789"[start:stop]


def test_get_first_and_last(log: Log) -> None:
    found = [log.get(offset) for offset in range(10)]

    assert [record.text for record in found if record] == [*"0123456789"]
    assert log.first() == found[0]
    assert log.last() == found[9]
    assert (log.get(10), log.get(-1), log.get(2**70)) == (None, None, None)


def test_bounds_and_length(log: Log) -> None:
    assert (log.start_offset(), log.end_offset(), len(log)) == (0, 10, 10)
    log.truncate(before=4)
    assert (log.start_offset(), log.end_offset(), len(log)) == (4, 10, 6)
    assert bool(log)


def test_a_log_that_does_not_exist_is_empty(ms: Millstream) -> None:
    log = ms.log("nowhere")

    assert (log.start_offset(), log.end_offset(), len(log)) == (0, 0, 0)
    assert (log.first(), log.last(), log.get(0), list(log.read())) == (None, None, None, [])
    assert (log.info(), log.cursors(), dict(log.metadata)) == (None, [], {})
    assert bool(log)
    assert list(ms.logs()) == []


def test_what_was_truncated_is_said_or_skipped(log: Log) -> None:
    log.truncate(before=5)

    assert texts(log) == "56789"
    assert texts(log, None, 7) == "56"
    assert log.get(4) is None
    assert log.first() is not None
    assert log.first().offset == 5  # type: ignore[union-attr]
    with pytest.raises(Truncated) as gone:
        texts(log, 4)
    assert (gone.value.offset, gone.value.start, gone.value.log) == (4, 5, "x")
    assert texts(log, -99) == "56789"


def test_reading_from_the_first_record_goes_on_if_that_was_just_forgotten(
    log: Log, ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by retention, between the questions where the log begins and what is there."""
    ask, left = type(ms.session).execute, [5, 7]

    def asked(session: Any, command: Command[Any]) -> Any:
        if isinstance(command, ReadBlocks) and left:
            ask(session, Truncate("x", left.pop(0)))
        return ask(session, command)

    monkeypatch.setattr(type(ms.session), "execute", asked)
    assert texts(log) == "789"
    assert not left
    left.append(8)
    with pytest.raises(Truncated):
        texts(log, 7)


def test_reading_sees_the_log_as_it_was_when_it_began(log: Log) -> None:
    reading = log.read()
    first = next(reading)
    log.append(b"later")

    assert "".join(r.text for r in [first, *reading]) == "0123456789"


def test_blocks_are_columns(ms: Millstream) -> None:
    log = ms.log("columns")
    log.append_many(
        [b"a", b"b", b"c"],
        keys=["k", None, "l"],
        headers=[{"n": 1}, None, {}],
        timestamps=[1, 2, 3],
    )
    (block,) = log.read_blocks(1, 3)

    assert (len(block), block.offsets) == (2, range(1, 3))
    assert block.values() == [b"b", b"c"]
    assert block.keys() == [None, b"l"]
    assert block.timestamps() == [2, 3]
    assert [dict(one) for one in block.headers()] == [{}, {}]
    assert block.records() == list(log.read(1, 3))


def test_neighbouring_singles_are_read_as_one_block(log: Log) -> None:
    assert [len(block) for block in log.read_blocks(0, 7)] == [3, 4]


@pytest.mark.parametrize("bytes_max", [1, 60, 1_000])
def test_a_small_page_changes_nothing_but_the_number_of_blocks(
    reopen: Reopen, bytes_max: int
) -> None:
    log = reopen(Limits(read_bytes_max=bytes_max)).log("x")
    for n in range(40):
        log.append(bytes([n]) * n)
    log.append_many([bytes([n]) * n for n in range(40, 60)])

    assert [r.value for r in log.read()] == [bytes([n]) * n for n in range(60)]
    assert [r.offset for r in log.read(7, 51)] == [*range(7, 51)]


def test_a_reader_ends_when_the_log_is_deleted_under_it(reopen: Reopen) -> None:
    log = reopen(Limits(read_bytes_max=1)).log("x")
    log.append_many([b"a" * 50, b"b" * 50])
    log.append_many([b"c" * 50, b"d" * 50])
    reading = log.read()
    next(reading)
    log.delete()

    assert [record.offset for record in reading] == [1]


def test_truncation_under_a_reader_is_said(reopen: Reopen) -> None:
    log = reopen(Limits(read_bytes_max=1)).log("x")
    for _ in range(3):
        log.append_many([b"a" * 50, b"b" * 50])
    reading = log.read()
    next(reading)
    log.truncate(before=5)

    assert next(reading).offset == 1
    with pytest.raises(Truncated):
        next(reading)


def test_logs_are_listed_by_name_in_pages(ms: Millstream) -> None:
    names = [f"log-{n:04}" for n in range(1_001)]
    with ms.transaction() as tx:
        for name in reversed(names):
            tx.append(name, b"x")

    assert [info.name for info in ms.logs()] == names
    ms.fold()
    assert [info.name for info in ms.logs()] == names


def test_a_log_is_described(ms: Millstream) -> None:
    log = ms.log("x")
    log.append(b"12345")
    first = log.info()
    log.append_many([b"6", b"7"])
    info = log.info()

    assert first is not None
    assert info is not None
    assert (info.name, info.start_offset, info.end_offset, len(info)) == ("x", 0, 3, 3)
    assert 0 < first.bytes < info.bytes
    assert wall_ms_of(info.created) == info.timestamp
    assert info.created == first.created


def test_a_log_is_empty_until_it_has_a_record_and_when_all_are_forgotten(ms: Millstream) -> None:
    for log in (ms.log("none"), ms.log("parts", partitions=3)):
        assert log.is_empty()
        log.append(b"x")
        assert not log.is_empty()
        assert bool(log)
    plain = ms.log("none")
    plain.truncate(before=1)
    assert plain.is_empty()
    assert bool(plain), "a handle is true, whatever its log holds"
