"""The entry that covers an offset is found by one scan, forwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream import Millstream
from millstream.engine.commit import Commit
from millstream.engine.memory.faults import Faults
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.testing import MemoryEngine, memory_store
from tests.unit.damaging import Fragile, fold_all

BATCHES = 5
PER_BATCH = 10
END = BATCHES * PER_BATCH


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def ms(faults: Faults) -> Iterator[Millstream]:
    with memory_store(MemoryEngine(faults=faults)) as ms:
        for first in range(0, END, PER_BATCH):
            ms.log("x").append_many([b"%d" % n for n in range(first, first + PER_BATCH)])
        fold_all(ms)
        yield ms


def scans(ms: Millstream, faults: Faults, start: int, stop: int) -> int:
    before = faults.steps.count("scan")
    found = [record.value for record in ms.log("x").read(start, stop)]
    assert found == [b"%d" % n for n in range(start, stop)]
    return faults.steps.count("scan") - before


@pytest.mark.parametrize("offset", [0, 3, 9, 10, 25, END - 1])
def test_one_record_takes_one_scan(ms: Millstream, faults: Faults, offset: int) -> None:
    assert scans(ms, faults, offset, offset + 1) == 1


@pytest.mark.parametrize("start", [0, 3, 9, 10, 25])
def test_all_up_to_the_end_take_one_scan(ms: Millstream, faults: Faults, start: int) -> None:
    assert scans(ms, faults, start, END) == 1


@pytest.mark.parametrize("start", [0, 3, 25])
def test_so_do_those_before_a_tail_that_is_not_folded(
    ms: Millstream, faults: Faults, start: int
) -> None:
    ms.log("x").append(b"%d" % END)
    ms.log("x").append(b"%d" % (END + 1))
    assert scans(ms, faults, start, END + 2) == 1
    assert scans(ms, faults, END, END + 2) == 0


def test_a_range_that_ends_within_an_entry_takes_one_more(ms: Millstream, faults: Faults) -> None:
    assert scans(ms, faults, 3, 25) == 2


def test_damage_ends_where_the_key_of_the_damaged_entry_says() -> None:
    fragile = Fragile()
    for first in range(0, END, PER_BATCH):
        fragile.ms.log("x").append_many([b"%d" % n for n in range(first, first + PER_BATCH)])
    fragile.settle()
    missing, spoilt = fragile.entry("x", 5), fragile.entry("x", 15)
    fragile.engine.corrupt(spoilt)
    with fragile.engine.write() as writer:
        writer.commit(Commit(deletes=[missing]))
    for start, stop in ((5, 20), (15, 20), (19, 20)):
        with pytest.raises(CorruptionError) as told:
            list(fragile.ms.log("x").read(start))
        assert (told.value.data["offset"], told.value.data["stop"]) == (start, stop)
    assert len(list(fragile.ms.log("x").read(20))) == 30
    assert keys.pair(spoilt)[1] == 19


def test_damage_of_a_parent_ends_at_the_latest_where_the_fork_goes_on() -> None:
    fragile = Fragile()
    log = fragile.ms.log("x")
    log.append_many([b"a"] * 6)
    fork = log.fork("y")
    for value in (b"b", b"c"):
        log.append(value)
    fragile.settle()
    fragile.spoil_entry("x", 3)
    with pytest.raises(CorruptionError) as told:
        list(fork.read(2))
    assert (told.value.data["offset"], told.value.data["stop"]) == (2, 6)
    fork.append(b"own")
    assert [record.value for record in fork.read(6)] == [b"own"]
