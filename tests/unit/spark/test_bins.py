"""Promise: ranges are shared out among as many tasks as they are worth; nothing is lost or doubled."""

from __future__ import annotations

import random

import pytest

from millstream.errors import InvalidInput
from millstream.spark.source.bins import BYTES_PER_BIN, RECORDS_PER_BIN, Bin, BinSizes, Range, bins


def small(one: Range) -> int:
    return 100 * len(one)


def joined(found: list[Bin[Range]]) -> list[Range]:
    """What all bins hold, with the pieces of a range put together again."""
    whole: list[Range] = []
    for one in (one for some in found for one in some):
        if whole and whole[-1].log == one.log and whole[-1].stop == one.start:
            whole[-1] = Range(one.log, whole[-1].start, one.stop)
        else:
            whole.append(one)
    return whole


def test_many_small_logs_take_as_few_tasks_as_one_log_of_their_size() -> None:
    one = bins([Range("one", 0, 1_000_000)], small, BinSizes())
    many = bins([Range(f"{n}", 5, 505) for n in range(2_000)], small, BinSizes())
    assert len(one) == len(many) == 1_000_000 // RECORDS_PER_BIN
    assert len(bins([Range(f"{n}", 0, 3) for n in range(10_000)], small, BinSizes())) == 5


def test_large_records_are_shared_out_by_their_bytes() -> None:
    ranges = [Range("small", 0, 100), Range("large", 0, 100)]
    found = bins(ranges, lambda one: 3 * BYTES_PER_BIN if one.log == "large" else 0, BinSizes())
    assert len(found) == 4
    assert max(len(one) for some in found for one in some if one.log == "large") < 40


def test_a_read_of_nothing_has_no_tasks() -> None:
    assert bins([], small, BinSizes()) == []
    assert bins([Range("empty", 4, 4)], small, BinSizes(bins_min=3)) == []


@pytest.mark.parametrize("seed", range(30))
def test_every_offset_is_in_one_task_and_the_wishes_are_kept(seed: int) -> None:
    chance = random.Random(seed)
    ranges = [
        Range(f"log{n}", start, start + chance.choice([1, 2, 50, 3_000]))
        for n in range(chance.randrange(1, 60))
        for start in [chance.randrange(1_000)]
    ]
    total = sum(map(len, ranges))
    sizes = {one.log: chance.choice([0, 10, 10**9]) * len(one) for one in ranges}
    least = chance.choice([None, 1, 2, 7, 40])
    most = chance.choice([None, 1 + total // 50, 1_000])
    wished = BinSizes(bins_min=least, records_max=most, records=chance.choice([10, 1_000, 10**6]))
    found = bins(ranges, lambda one: sizes[one.log] * len(one), wished)
    assert joined(found) == ranges, f"seed {seed}"
    assert len(found) >= min(least or 1, total)
    assert most is None or max(sum(map(len, some)) for some in found) <= most
    if least is not None and most is None:
        assert len(found) == min(least, total)


def test_more_tasks_than_can_be_planned_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"maxRecordsPerPartition: 1 .* 50,000 tasks"):
        bins([Range("one", 0, 50_000)], small, BinSizes(records_max=1))
