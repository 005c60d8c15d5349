"""A reader's progress in memory: without a store."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.log.progress import CursorProgress
from millstream.record import CursorInfo, Extent

COUNT = 1_000


def fresh() -> CursorProgress:
    return CursorProgress(CursorInfo(name="r", floor=0, ranges=[], lag=0, section=10, durable=True))


def test_acknowledgements_fill_gaps_and_raise_the_floor() -> None:
    progress = fresh()
    progress.acked([(2, 4), (6, 7)], 0)
    assert [n for n in range(8) if progress.is_acked(n)] == [2, 3, 6]
    assert (progress.floor(0), progress.floor(2), progress.floor(6)) == (0, 4, 7)
    assert (progress.next_gap(0, 99), progress.next_gap(4, 99)) == ((0, 2), (4, 6))
    progress.acked([(0, 2), (4, 6)], 0)
    assert (progress.floor(0), progress.next_gap(0, 9)) == (7, (7, 9))


def test_an_acknowledgement_from_before_the_end_went_back_marks_nothing() -> None:
    progress = fresh()
    progress.acked([(0, 1)], 0)
    progress.catch_up(Extent(0, 9, 1, 5))
    progress.acked([(1, 9)], 0)
    assert not any(progress.is_acked(n) for n in range(1, 9))
    progress.acked([(1, 2)], 1)
    assert progress.floor(0) == 2


def test_a_flush_goes_to_a_whole_section_at_or_behind_the_start() -> None:
    progress = fresh()
    assert progress.flushable(0) == 0
    progress.acked([(0, 25)], 0)
    assert progress.flushable(0) == 20
    assert progress.flushable(38) == 30


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
def test_a_thread_that_looks_sees_no_half_made_acknowledgement() -> None:
    progress = fresh()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            for offset in (0, 10, COUNT // 2):
                first, stop = progress.next_gap(offset, COUNT)
                assert offset <= first <= COUNT
                assert first < stop or stop == COUNT
                assert offset <= progress.floor(offset) <= COUNT
                progress.is_acked(offset)

    offsets = random.Random(7).sample(range(COUNT), COUNT)
    with ThreadPoolExecutor(2) as threads:
        lookers = [threads.submit(look) for _ in range(2)]
        try:
            for _ in range(20):
                for offset in offsets:
                    progress.acked([(offset, offset + 1)], 0)
                progress.moved(0)
        finally:
            ended.set()
        for one in lookers:
            one.result()
