"""What is needed of a log, and which entries are worth replacing."""

from __future__ import annotations

import random
from functools import partial

import pytest

from millstream.doctor.coverage import Coverage
from millstream.format import block as blocks
from millstream.format import entries
from millstream.log.model.head import Head
from millstream.log.model.users import NO_END
from millstream.log.reading.reader import log_id_of
from millstream.log.rules.retention import _forget, cut
from millstream.log.rules.sparse import SINGLES_MAX, Needed, is_sparse
from millstream.record import Retention
from millstream.testing import Probe, memory_store

pytestmark = pytest.mark.embedded


def block_of(count: int) -> bytes:
    return blocks.place(b"", kind=blocks.METADATA, count=count, columns=0)


def test_needed_offsets_are_counted_and_listed_whatever_their_order_and_overlap() -> None:
    source = random.Random(7)
    for _ in range(200):
        ranges = []
        for _ in range(source.randrange(6)):
            start = source.randrange(40)
            ranges.append((start, start + source.randrange(1, 8)))
        needed = Needed(ranges)
        plain = {offset for start, stop in ranges for offset in range(start, stop)}
        for _ in range(20):
            start = source.randrange(50)
            stop = start + source.randrange(20)
            expected = sorted(plain & set(range(start, stop)))
            assert needed.offsets(start, stop) == expected, ranges
            assert needed.count(start, stop) == len(expected), ranges


def test_the_floor_is_where_something_needs_everything() -> None:
    assert Needed([]).floor == NO_END
    assert Needed([(3, 5)]).floor == NO_END
    assert Needed([(3, 5), (9, NO_END), (7, NO_END), (6, 7)]).floor == 7


@pytest.mark.parametrize(
    ("total", "live", "sparse"),
    [
        (1, 0, True),
        (1, 1, False),
        (4, 1, False),
        (5, 1, True),
        (100, 24, True),
        (100, 25, False),
        (40_000, SINGLES_MAX, True),
        (40_000, SINGLES_MAX + 1, False),
    ],
)
def test_an_entry_is_replaced_below_a_quarter(total: int, live: int, sparse: bool) -> None:
    value = block_of(total)
    assert entries.count(value) == total
    assert is_sparse(10, value, Needed([(10, 10 + live)] if live else [])) is sparse


def test_coverage_tells_what_is_missing() -> None:
    source = random.Random(11)
    for _ in range(200):
        coverage, plain, position = Coverage(), set(), 0
        for _ in range(source.randrange(6)):
            position += source.randrange(4)
            stop = position + source.randrange(1, 5)
            coverage.add(position, stop)
            plain |= set(range(position, stop))
            position = stop
        start = source.randrange(30)
        stop = start + source.randrange(20)
        found = [
            offset for low, high in coverage.missing(start, stop) for offset in range(low, high)
        ]
        assert found == sorted(set(range(start, stop)) - plain)


def test_what_was_counted_before_others_deleted_it_moves_no_start() -> None:
    with memory_store() as ms:
        log = ms.log("x")
        log.append_many([b"x" * 1_000] * 5)
        log.append_many([b"y" * 1_000] * 5)
        store = Probe(ms).store
        log_id = log_id_of(store, "x")
        log.retain(bytes=6_000)
        before = Head(name="x", end=10, bytes=10_096, retention=Retention(bytes=6_000))
        log.enforce_retention()
        assert log.start_offset() == 5
        start = cut(store, log_id, before, floor=None, now_ms=0)
        assert start == 10, "half of what was counted is gone"
        assert store.run(partial(_forget, log_id=log_id, head=before, start=start)) == 0
        assert len(log) == 5
